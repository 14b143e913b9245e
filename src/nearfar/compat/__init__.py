"""The API of pytorch-metric-learning, implemented with nearfar's losses: only the import changes.

    from nearfar.compat import losses, miners      # was: from pytorch_metric_learning import losses, miners

Values and gradients are those of pytorch-metric-learning 2.9, except where a docstring names a difference. Unsupported
arguments raise an error. See docs/coming-from-pytorch-metric-learning.md. Only the module `peer` imports
pytorch-metric-learning: for comparisons, it replaces losses of nearfar with those of pytorch-metric-learning.
"""

__version__ = "2.9.0"  # the version of pytorch-metric-learning whose API this is
