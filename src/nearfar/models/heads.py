"""The head: from pooled features to the embedding. Embeddings leave it raw, the losses normalize."""

from __future__ import annotations

from torch import Tensor, nn

from nearfar.validation import check_choice

HEADS = ("linear", "mlp", "identity")
STARTS = ("kaiming", "random", "pca")


class Head(nn.Module):
    """y = W x + b, and in an MLP + V relu(U x + c), of pooled features x.

    `init`: "kaiming" (normal, variance 2 / dim, fan_out; b = 0) is Proxy-Anchor's and Proxy-ISA's released code,
    "random" is torch's own, "pca" waits for `nearfar.models.init_head_from_pca`. V starts at 0 (ours): an MLP starts as
    the linear head and leaves it as far as the loss wants, so every start of W serves it too. `layer_norm` normalizes x
    first, without affine parameters (Teh et al., ProxyNCA++, arXiv 2004.01113).

    >>> import torch
    >>> Head(8, 4, hidden=16, layer_norm=True)(torch.randn(2, 8)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self, features: int, dim: int, *, hidden: int | None = None, layer_norm: bool = False, init: str = "kaiming"
    ) -> None:
        super().__init__()
        self.init = check_choice("init", init, STARTS)
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
    """The head of this name; `hidden` (an MLP's width) is by default twice `dim`, "identity" keeps the features."""
    check_choice("head", name, HEADS)
    check_choice("init", init, STARTS)
    if hidden is not None and name != "mlp":
        raise ValueError(f"hidden={hidden} is the width of head='mlp', got head={name!r}: leave it out")
    if name == "identity":
        if dim != features:
            raise ValueError(f"head='identity' keeps the {features} features, got dim={dim}: leave dim out")
        return nn.LayerNorm(features, elementwise_affine=False) if layer_norm else nn.Identity()
    width = (hidden or 2 * dim) if name == "mlp" else None
    return Head(features, dim, hidden=width, layer_norm=layer_norm, init=init)
