"""Tensor operations that losses, mining and metrics are built from."""
