"""Tensor operations that losses, mining and metrics are built from.

The letters in shapes: A anchors, R references, B samples in a batch, d dimensions of an embedding, C classes.
"""
