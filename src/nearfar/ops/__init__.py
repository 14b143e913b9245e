"""Tensor operations that losses, mining and metrics are built from.

Each anchor is compared with all references. Often the anchors and the references are the samples of the same batch. In
shapes, A is the number of anchors, R the number of references, B the batch size, d the dimension of the embeddings, and
C the number of classes.
"""
