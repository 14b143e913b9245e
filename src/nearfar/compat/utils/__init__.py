"""The package that contains `accuracy_calculator`, as in pytorch-metric-learning."""
