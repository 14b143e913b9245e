"""Utilities of pytorch-metric-learning, such as `accuracy_calculator` and `inference`, under the same module names."""
