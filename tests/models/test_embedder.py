"""Properties of every backbone, pooling and head, and of their combinations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from nearfar.losses import create as create_loss
from nearfar.models import Embedder, create, create_embedder, names
from nearfar.models.pooling import POOLINGS, GeM, create_pooling

# Published counts without the classifier. With it: BN-Inception 11,295,240, GoogLeNet of Caffe 6,998,552, GoogLeNet of
# torchvision 6,624,904, ResNet-18 11,689,512, ResNet-50 25,557,032, Lite0 4,652,008, Lite1 5,416,680, Lite2 6,092,072
PARAMETERS = {
    "bn-inception": 10_270_240,
    "efficientnet-lite0": 3_371_008,
    "efficientnet-lite1": 4_135_680,
    "efficientnet-lite2": 4_811_072,
    "googlenet": 5_973_552,
    "googlenet-bn": 5_599_904,
    "resnet18": 11_176_512,
    "resnet50": 23_508_032,
}
IMAGE_BACKBONES = [name for name in names() if name != "features"]
LARGE = [name for name in IMAGE_BACKBONES if not name.startswith("small")]


def make_images(embedder: Embedder, count: int = 2, side: int | None = None) -> torch.Tensor:
    side = side or (64 if embedder.input_size > 64 else embedder.input_size)
    return torch.randn(count, embedder.channels, side, side)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count_equals_the_published_one(name: str) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in create(name).parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", IMAGE_BACKBONES)
def test_every_backbone_computes_embeddings_and_gradients(name: str) -> None:
    embedder = create_embedder(name, dim=16)
    x = make_images(embedder)
    y = embedder(x)
    assert y.shape == (2, 16) == (2, embedder.dim)
    y.square().sum().backward()
    for parameter in embedder.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
    assert embedder.backbone(x).shape[:2] == (2, embedder.backbone.features)


@pytest.mark.parametrize("name", LARGE)
def test_stride_is_32_at_the_published_size(name: str) -> None:
    backbone = create(name).eval()
    with torch.no_grad():
        assert backbone(torch.zeros(1, 3, 224, 224)).shape[-2:] == (7, 7)


@pytest.mark.parametrize("name", IMAGE_BACKBONES)
@pytest.mark.parametrize("channels", [1, 3])
def test_channels(name: str, channels: int) -> None:
    with torch.device("meta"):
        embedder = create_embedder(name, dim=4, channels=channels).eval()
        assert embedder(make_images(embedder)).shape == (2, 4)
    assert embedder.channels == len(embedder.mean) == len(embedder.std) == channels


@pytest.mark.parametrize("name", ["small", "small-conv"])
@pytest.mark.parametrize("side", [28, 32, 47, 64])
def test_small_networks_accept_28_to_64_pixels(name: str, side: int) -> None:
    embedder = create_embedder(name, dim=8, input_size=side)
    assert embedder.input_size == side
    assert embedder(make_images(embedder)).shape == (2, 8)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("head", ["linear", "mlp", "identity"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_poolings_and_heads_combine(pooling: str, head: str, layer_norm: bool) -> None:
    dim = None if head == "identity" else 24
    embedder = create_embedder("small-conv", pooling=pooling, head=head, layer_norm=layer_norm, dim=dim)
    assert embedder(make_images(embedder)).shape == (2, embedder.dim)
    cells = 16 if pooling == "grid" else 1
    assert embedder.dim == (dim or cells * embedder.backbone.features)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["small", "efficientnet-lite0", "googlenet"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    embedder = create_embedder(name, dim=8, pooling="gem").to(dtype)
    y = embedder(make_images(embedder).to(dtype))
    assert y.dtype == dtype
    assert torch.isfinite(y).all()


def test_autocast() -> None:
    embedder = create_embedder("small", dim=8, pooling="gem-trainable", head="mlp")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = embedder(make_images(embedder))
    y.float().sum().backward()
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("name", IMAGE_BACKBONES)
def test_compiles_as_one_graph(name: str) -> None:
    torch._dynamo.reset()
    embedder = create_embedder(name, dim=8, pooling="gem", freeze_bn=True)
    layers = [*embedder.backbone.children()]
    # the first blocks contain every kind of layer, and tracing all of a large network takes seconds
    if name.startswith("efficientnet"):
        layers = [layers[0], *[*layers[1].children()][:3]]
    elif name in LARGE:
        layers = layers[: 5 if name.startswith("resnet") else 8]
    model = nn.Sequential(*layers, embedder.pooling)
    x = make_images(embedder, 1)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


def test_an_embedder_compiles_as_one_graph() -> None:
    torch._dynamo.reset()
    embedder = create_embedder("small", dim=8, pooling="average+max", head="mlp", freeze_bn=True)
    x = make_images(embedder)
    torch.testing.assert_close(torch.compile(embedder, backend="eager", fullgraph=True)(x), embedder(x))


def test_the_same_seed_and_config_create_the_same_embedder() -> None:
    first = create_embedder("small", dim=8, pooling="gem", head="mlp", hidden=32, layer_norm=True, channels=3)
    torch.manual_seed(0)
    second = create_embedder(**first.config)
    torch.manual_seed(0)
    third = create_embedder(**second.config)
    assert first.config == third.config
    for name, value in second.state_dict().items():
        assert torch.equal(value, third.state_dict()[name])
    x = make_images(second)
    assert torch.equal(second(x), third(x))


def test_channels_last_gives_the_same_embeddings() -> None:
    embedder = create_embedder("small", dim=8).eval()
    x = make_images(embedder)
    expected = embedder(x)
    last = embedder.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, expected, rtol=1e-4, atol=1e-5)


def step(embedder: Embedder) -> None:
    embedder.train()
    adam = torch.optim.Adam(embedder.parameter_groups(0.1))
    embedder(make_images(embedder, 4)).square().sum().backward()
    adam.step()


def norm_state(embedder: Embedder) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in embedder.state_dict().items() if "running" in name or "tracked" in name}


@pytest.mark.parametrize("affine", [False, True])
def test_frozen_batch_norm_stays_constant(affine: bool) -> None:
    embedder = create_embedder("small", dim=8)
    embedder.freeze_batchnorm(affine=affine)
    before, weights = norm_state(embedder), [p.clone() for p in embedder.parameters()]
    for _ in range(2):
        step(embedder)
    assert all(torch.equal(value, before[name]) for name, value in norm_state(embedder).items())
    same = [torch.equal(a, b) for a, b in zip(embedder.parameters(), weights, strict=True)]
    norms = [isinstance(part, nn.BatchNorm2d) for part in embedder.modules() for _ in part.parameters(recurse=False)]
    assert same == [affine and norm for norm in norms]
    assert embedder.training
    assert embedder.head.training


def test_batch_norm_that_is_not_frozen_changes() -> None:
    embedder = create_embedder("small", dim=8)
    before = norm_state(embedder)
    step(embedder)
    assert not any(torch.equal(value, before[name]) for name, value in norm_state(embedder).items())


def test_frozen_batch_norm_makes_samples_independent() -> None:
    embedder = create_embedder("efficientnet-lite0", dim=8, freeze_bn=True).train()
    x = make_images(embedder, 3)
    torch.testing.assert_close(embedder(x)[:1], embedder(x[:1]), rtol=1e-4, atol=1e-5)


def test_parameter_groups() -> None:
    embedder = create_embedder("small", dim=8, pooling="gem-trainable")
    groups = embedder.parameter_groups(1e-3, 10, weight_decay=0.1)
    assert [(g["name"], g["lr"], g["weight_decay"]) for g in groups] == [("trunk", 1e-3, 0.1), ("head", 1e-2, 0.1)]
    assert sum(len(g["params"]) for g in groups) == len(list(embedder.parameters()))
    groups = embedder.parameter_groups(1e-3, weight_decay=0.1, decay_vectors=False)
    assert [g["name"] for g in groups] == ["trunk", "trunk vectors", "head", "head vectors"]
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0, 0.1, 0.0]
    assert all(p.ndim > 1 for g in groups[::2] for p in g["params"])
    assert {id(p) for g in groups for p in g["params"]} == {id(p) for p in embedder.parameters()}
    loss = create_loss("proxy-anchor", classes=3, dim=8)
    torch.optim.AdamW([*groups, *loss.parameter_groups(1e-3)])  # type: ignore[operator]


def test_parameter_groups_omit_frozen_parameters_and_empty_groups() -> None:
    embedder = create_embedder("features", channels=8, dim=4)
    assert [g["name"] for g in embedder.parameter_groups(1e-3)] == ["head"]
    embedder = create_embedder("small-conv", dim=8)
    for parameter in embedder.trunk_parameters():
        parameter.requires_grad_(False)
    assert [g["name"] for g in embedder.parameter_groups(1e-3)] == ["head"]
    assert len(embedder.head_parameters()) == 2


def test_gem_limits() -> None:
    x = torch.rand(3, 5, 4, 6) + 0.1
    torch.testing.assert_close(GeM(1.0)(x), x.mean((2, 3)))
    torch.testing.assert_close(GeM(2000.0)(x), x.amax((2, 3)), rtol=2e-3, atol=0)
    torch.testing.assert_close(GeM(3.0)(x), x.pow(3).mean((2, 3)).pow(1 / 3))
    torch.testing.assert_close(create_pooling("average+max")(x), x.mean((2, 3)) + x.amax((2, 3)))
    assert torch.isfinite(GeM(20.0)(x * 1e30)).all()
    torch.testing.assert_close(GeM()(-x), torch.full((3, 5), 1e-6))


@pytest.mark.parametrize("side", [4, 7, 8, 13])
def test_grid_keeps_positions(side: int) -> None:
    x = torch.rand(2, 3, side, side)
    y = create_pooling("grid")(x)
    assert y.shape == (2, 48)
    if side == 4:
        torch.testing.assert_close(y, x.flatten(1))
    if side == 8:
        torch.testing.assert_close(y, torch.nn.functional.avg_pool2d(x, 2).flatten(1))
    assert not torch.allclose(y, create_pooling("grid")(x.flip(3)))


def test_gem_gradients() -> None:
    x = torch.rand(2, 3, 2, 2, dtype=torch.float64) + 0.1
    gem = GeM(2.5, trainable=True).double()
    assert torch.autograd.gradcheck(gem, x.requires_grad_())
    gem(x).sum().backward()
    assert isinstance(gem.p, nn.Parameter)
    value = gem.p.item()
    higher, lower = (x.pow(p).mean((2, 3)).pow(1 / p).sum().item() for p in (value + 1e-5, value - 1e-5))
    assert gem.p.grad is not None
    assert gem.p.grad.item() == pytest.approx((higher - lower) / 2e-5, rel=1e-6)


def test_head_initializations() -> None:
    weight = create_embedder("features", channels=256, dim=512, init="kaiming").head.linear
    assert weight.weight.std().item() == pytest.approx(math.sqrt(2 / 512), rel=0.02)
    assert not weight.bias.any()
    torch.manual_seed(1)
    random = create_embedder("features", channels=256, dim=512, init="random").head.linear
    torch.manual_seed(1)
    assert torch.equal(random.weight, nn.Linear(256, 512).weight)


def test_an_mlp_starts_as_its_linear_layer_and_learns_more() -> None:
    embedder = create_embedder("features", channels=6, dim=4, head="mlp", init="kaiming")
    x = torch.randn(5, 6)
    torch.testing.assert_close(embedder(x), embedder.head.linear(x))
    for _ in range(2):
        torch.optim.SGD(embedder.parameter_groups(0.1)).zero_grad()
        embedder(x).square().sum().backward()
        torch.optim.SGD(embedder.parameter_groups(0.1)).step()
    assert (embedder(x) - embedder.head.linear(x)).abs().max() > 1e-3


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "backbone": ({"backbone": "resnet51"}, "unknown backbone 'resnet51'; did you mean 'resnet50'"),
    "pooling": ({"pooling": "avg"}, "pooling must be one of .* did you mean 'average'"),
    "head": ({"head": "liner"}, "head must be one of .* did you mean 'linear'"),
    "init": ({"init": "kaming"}, "init must be one of .* did you mean 'kaiming'"),
    "gem_p": ({"pooling": "gem", "gem_p": 0.0}, "gem_p must be .* above 0"),
    "dim": ({"dim": 0}, "dim must be an integer"),
    "identity and dim": ({"head": "identity", "dim": 7}, "head='identity' keeps the .* dim=7"),
    "hidden of a linear head": ({"hidden": 7}, "hidden=7 is the width of head='mlp'"),
    "pooled vectors": ({"backbone": "features", "channels": 3, "pooling": "gem"}, "outputs vectors.*pooling='gem'"),
    "features without channels": ({"backbone": "features"}, "requires channels"),
    "no public weights": ({"backbone": "small", "pretrained": True}, "backbone 'small' has no public weights"),
    "input_size": ({"input_size": -1}, "input_size must be an integer"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_are_named(case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        create_embedder(**options)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"shape \[B, 1, H, W\], got \[2, 3, 28, 28\]"):
        create_embedder("small")(torch.zeros(2, 3, 28, 28))
    with pytest.raises(ValueError, match=r"shape \[B, 5\], got \[2, 4\]"):
        create_embedder("features", channels=5, dim=2)(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"floating point.*torch.uint8"):
        create_embedder("small")(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))
