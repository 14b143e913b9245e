"""The API of pytorch-metric-learning ("the peer") on nearfar's losses: change the import, keep the code.

    from nearfar.compat import losses, miners      # was: from pytorch_metric_learning import losses, miners

Values and gradients are those of pytorch-metric-learning 2.9. Unsupported arguments raise an error. See
docs/coming-from-pytorch-metric-learning.md. Only `peer`, which creates the peer's losses from ours for comparisons,
imports pytorch-metric-learning.
"""
