"""Losses that train two encoders, for example one for images and one for texts, to give matching embeddings.

These losses are not registered in `nearfar.losses`, because they compare the embeddings of the two encoders instead of
the samples within one batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from nearfar.ops.geometry import cosine_matrix
from nearfar.validation import check_positive

MAX_SCALE = 100.0


def symmetric_info_nce(logits: Tensor, same: Tensor) -> Tensor:
    """Compute the cross-entropy over rows and the cross-entropy over columns, and return the mean of the two.

    The cross-entropy over rows is mean_i mean_{j in P_i} -log( e^{L_ij} / sum_k e^{L_ik} ), where P_i are the positives
    of row i. The cross-entropy over columns is the same for the transposed matrices. With one positive per row and
    column, the result is the loss of CLIP (Radford et al., ICML 2021, arXiv 2103.00020, Figure 3).

    Args:
        logits: Scaled similarities L [A, R] of A outputs of one encoder and R outputs of the other.
        same: Mask of the positives [A, R]. Rows and columns without a positive are left out.
    """
    return (_cross_entropy(logits, same) + _cross_entropy(logits.T, same.T)) / 2


def _cross_entropy(logits: Tensor, same: Tensor) -> Tensor:
    counts = same.sum(1)
    terms = -(logits.log_softmax(1) * same).sum(1) / counts.clamp_min(1)
    return terms.sum() / (counts > 0).sum().clamp_min(1)


def sigmoid_matching(logits: Tensor, same: Tensor) -> Tensor:
    """Compute -(1/A) sum_ij log sigmoid(z_ij L_ij), where z is 1 for positives and -1 for negatives.

    This is the loss of SigLIP (Zhai et al., ICCV 2023, arXiv 2303.15343, Eq. 1).

    Args:
        logits: Scaled and shifted similarities L [A, R] of A outputs of one encoder and R outputs of the other.
        same: Mask of the positives [A, R].
    """
    return -logsigmoid(torch.where(same, logits, -logits)).sum() / max(1, len(logits))


class ImageTextLoss(nn.Module):
    """Base class of losses for two encoders, with a learned scale of the cosines.

    Call it as `loss(embeddings, labels, ref_emb=..., ref_labels=...)`, like other losses. `embeddings` are the outputs
    of one encoder, and `ref_emb` are those of the other. Samples with equal labels are positives.

    Args:
        scale: The initial scale. As in CLIP, the parameter is the logarithm of the scale, and the scale is limited to
            at most 100.
    """

    def __init__(self, *, scale: float) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(check_positive("scale", scale))))

    def logits(self, embeddings: Tensor, ref_emb: Tensor) -> Tensor:
        """Return the scaled cosines [A, R] of the A vectors in `embeddings` and the R vectors in `ref_emb`."""
        return self.log_scale.clamp(max=math.log(MAX_SCALE)).exp() * cosine_matrix(embeddings, ref_emb)

    def forward(self, embeddings: Tensor, labels: Tensor, *, ref_emb: Tensor, ref_labels: Tensor) -> Tensor:
        """Compute the loss of `embeddings` [A, d] with `labels` [A], and `ref_emb` [R, d] with `ref_labels` [R]."""
        if len(embeddings) != len(labels) or len(ref_emb) != len(ref_labels):
            raise ValueError(
                f"labels must have one entry per embedding ({len(embeddings)}) and ref_labels one entry per row of "
                f"ref_emb ({len(ref_emb)}), got {len(labels)} and {len(ref_labels)} entries"
            )
        return self.cost(self.logits(embeddings, ref_emb), labels[:, None] == ref_labels[None])

    def cost(self, logits: Tensor, same: Tensor) -> Tensor:
        """Compute the loss from the logits and the mask of positives."""
        raise NotImplementedError


class InfoNCELoss(ImageTextLoss):
    """Symmetric InfoNCE with a learned scale, see `symmetric_info_nce`. The initial scale 1 / 0.07 is that of CLIP.

    >>> x = torch.eye(2)
    >>> round(float(InfoNCELoss(scale=1.0)(x, torch.arange(2), ref_emb=x, ref_labels=torch.arange(2))), 4)
    0.3133
    """

    def __init__(self, *, scale: float = 1 / 0.07) -> None:
        super().__init__(scale=scale)

    def cost(self, logits: Tensor, same: Tensor) -> Tensor:
        return symmetric_info_nce(logits, same)


class SigmoidLoss(ImageTextLoss):
    """Sigmoid loss with a learned scale and bias, see `sigmoid_matching`. The initial values are those of SigLIP.

    >>> x = torch.eye(2)
    >>> loss = SigmoidLoss(scale=1.0, bias=0.0)
    >>> round(float(loss(x, torch.arange(2), ref_emb=x, ref_labels=torch.arange(2))), 4)
    1.0064
    """

    def __init__(self, *, scale: float = 10.0, bias: float = -10.0) -> None:
        super().__init__(scale=scale)
        self.bias = nn.Parameter(torch.tensor(float(bias)))

    def cost(self, logits: Tensor, same: Tensor) -> Tensor:
        return sigmoid_matching(logits + self.bias, same)


IMAGE_TEXT_LOSSES: dict[str, Callable[[], ImageTextLoss]] = {"info-nce": InfoNCELoss, "sigmoid": SigmoidLoss}
