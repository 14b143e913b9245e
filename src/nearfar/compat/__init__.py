"""pytorch-metric-learning's names, arguments and calls over nearfar's losses: change the import, keep the code.

    from nearfar.compat import losses, miners      # was: from pytorch_metric_learning import losses, miners

Values and gradients are pytorch-metric-learning's (2.9); what is not here says so. See
docs/coming-from-pytorch-metric-learning.md. Nothing here imports pytorch-metric-learning, except `peer`, which makes
its losses from ours for comparisons.
"""
