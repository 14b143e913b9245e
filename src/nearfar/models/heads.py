"""Heads: from pooled features to the embedding. The losses normalize the embeddings, not the head."""

from __future__ import annotations

from torch import Tensor, nn

from nearfar.validation import check_choice

HEADS = ("linear", "mlp", "identity")
INITS = ("kaiming", "random", "pca")


class Head(nn.Module):
    """Linear head y = W x + b on pooled features x, or MLP head y = W x + b + V relu(U x + c).

    V is initialized with 0 (ours), so an MLP starts as the linear head and every initialization of W applies to it.

    Args:
        features: Number of features in x.
        dim: Number of dimensions of the embedding.
        hidden: Width of the hidden layer of an MLP. None is the linear head.
        layer_norm: Normalize x first, without affine parameters (Teh et al., ProxyNCA++, arXiv 2004.01113).
        init: Initialization of W and b. "kaiming" (normal, variance 2 / dim, fan_out; b = 0) is that of the released
            code of Proxy-Anchor and Proxy-ISA. "random" is the default of torch. "pca" is completed by
            `nearfar.models.init_head_from_pca`.

    >>> import torch
    >>> Head(8, 4, hidden=16, layer_norm=True)(torch.randn(2, 8)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self, features: int, dim: int, *, hidden: int | None = None, layer_norm: bool = False, init: str = "kaiming"
    ) -> None:
        super().__init__()
        self.init = check_choice("init", init, INITS)
        self.norm = nn.LayerNorm(features, elementwise_affine=False) if layer_norm else nn.Identity()
        self.linear = nn.Linear(features, dim)
        if init == "kaiming":
            nn.init.kaiming_normal_(self.linear.weight, mode="fan_out")
            nn.init.zeros_(self.linear.bias)
        self.mlp: nn.Sequential | None = None
        if hidden is not None:
            last = nn.Linear(hidden, dim, bias=False)
            nn.init.zeros_(last.weight)
            self.mlp = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), last)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        y: Tensor = self.linear(x)
        return y if self.mlp is None else y + self.mlp(x)


def create_head(
    name: str, features: int, dim: int, *, hidden: int | None = None, layer_norm: bool = False, init: str = "kaiming"
) -> nn.Module:
    """Create a head: linear, mlp (`hidden` is twice `dim` by default) or identity, which returns the features."""
    check_choice("head", name, HEADS)
    check_choice("init", init, INITS)
    if hidden is not None and name != "mlp":
        raise ValueError(f"hidden={hidden} is the width of head='mlp', got head={name!r}: remove hidden")
    if name == "identity":
        if dim != features:
            raise ValueError(f"head='identity' keeps the {features} features, got dim={dim}: remove dim")
        return nn.LayerNorm(features, elementwise_affine=False) if layer_norm else nn.Identity()
    width = (hidden or 2 * dim) if name == "mlp" else None
    return Head(features, dim, hidden=width, layer_norm=layer_norm, init=init)
