"""The package of `accuracy_calculator`, as in pytorch-metric-learning."""
