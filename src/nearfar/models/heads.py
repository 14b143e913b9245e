"""Heads, which map pooled features to embeddings. Heads do not normalize the embeddings; losses do."""

from __future__ import annotations

from torch import Tensor, nn

from nearfar.validation import check_choice

HEADS = ("linear", "mlp", "identity")
INITS = ("kaiming", "random", "pca")


class Head(nn.Module):
    """Linear head y = W x + b on pooled features x, or MLP head y = W x + b + V relu(U x + c).

    V is initialized with 0 (our choice). An MLP head therefore starts as the linear head, and all initializations of W
    and b apply to both.

    Args:
        features: Number of features in x.
        dim: Number of dimensions of the embedding.
        hidden: Width of the hidden layer of an MLP head. None creates a linear head.
        layer_norm: If True, a layer norm without affine parameters is applied to x first (Teh et al., ProxyNCA++,
            arXiv 2004.01113).
        init: Initialization of W and b. "kaiming" (W normal with variance 2 / dim, b = 0) is that of the released code
            of Proxy-Anchor and Proxy-ISA. "random" is the default of torch.nn.Linear. "pca" starts like "random" and
            expects a later call to `nearfar.models.init_head_from_pca`.

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
    """Create the head "linear", "mlp" or "identity".

    For "mlp", `hidden` is twice `dim` by default. The head "identity" returns the features, after a layer norm if
    `layer_norm` is true. See `Head` for the other arguments.
    """
    check_choice("head", name, HEADS)
    check_choice("init", init, INITS)
    if hidden is not None and name != "mlp":
        raise ValueError(f"hidden={hidden} is the width of head='mlp', but head is {name!r}: remove hidden")
    if name == "identity":
        if dim != features:
            raise ValueError(f"head='identity' keeps the {features} features, but dim={dim}: remove dim")
        return nn.LayerNorm(features, elementwise_affine=False) if layer_norm else nn.Identity()
    width = (hidden or 2 * dim) if name == "mlp" else None
    return Head(features, dim, hidden=width, layer_norm=layer_norm, init=init)
