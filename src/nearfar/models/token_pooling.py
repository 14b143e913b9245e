"""Pooling of the tokens of a transformer: the first token, the mean, or an average with learned weights.

Tokens have the shape [B, L, features + 1]. The last number of a token is its weight. The weight is 1 for a token of a
text or a patch of an image, and 0 for padding and for the CLS and register tokens of an image.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearfar.validation import check_choice

TOKEN_POOLINGS = ("cls", "mean", "attention")


class FirstTokenPooling(nn.Module):
    """The first token, which is CLS in BERT and ViT."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0, :-1]


class MeanTokenPooling(nn.Module):
    """Mean of the tokens with weight 1.

    >>> MeanTokenPooling()(torch.tensor([[[2.0, 1.0], [4.0, 1.0], [9.0, 0.0]]]))
    tensor([[3.]])
    """

    def forward(self, tokens: Tensor) -> Tensor:
        values, weights = tokens[..., :-1], tokens[..., -1:]
        return (values * weights).sum(1) / weights.sum(1).clamp_min(1)


class AttentionTokenPooling(nn.Module):
    """Average of the tokens with the weights softmax(w . token / sqrt(features)), where w is a trained vector.

    At the start, w is 0 and the result is the mean. Padding and other tokens whose last number is 0 are left out.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(features))

    def forward(self, tokens: Tensor) -> Tensor:
        values, weights = tokens[..., :-1], tokens[..., -1]
        scores = (values @ self.query / values.shape[-1] ** 0.5).masked_fill(weights == 0, -torch.inf)
        shares = torch.nan_to_num(scores.softmax(1))  # the softmax is NaN for a sample without tokens
        return (shares[:, :, None] * values).sum(1)


def create_token_pooling(name: str, features: int) -> nn.Module:
    """Create the pooling "cls", "mean" or "attention" for tokens with this number of features."""
    check_choice("pooling", name, TOKEN_POOLINGS)
    if name == "attention":
        return AttentionTokenPooling(features)
    return FirstTokenPooling() if name == "cls" else MeanTokenPooling()
