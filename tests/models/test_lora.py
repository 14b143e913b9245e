"""LoRA: the update is W + (alpha / r) B A, only its factors are trained, and merged weights give the same network."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nearfar.models import Backbone, Embedder, add_lora, create_embedder, merge_lora
from nearfar.models.lora import LowRankUpdate, lora_parameters
from nearfar.training import Run, train
from training_cases import configured


class Attention(Backbone):
    """A small attention network, with every supported kind of layer."""

    has_map_output = False

    def __init__(self) -> None:
        super().__init__(features=8, channels=3, input_size=8)
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.mix = nn.Conv2d(8, 8, 1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.mix(self.patch(x)).flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens)[0]
        y: Tensor = self.linear(tokens).mean(1)
        return y


def make_embedder() -> Embedder:
    return Embedder(Attention(), nn.Identity(), nn.Linear(8, 4), dim=4)


def randomize(embedder: nn.Module) -> None:
    with torch.no_grad():
        for parameter in lora_parameters(embedder):
            parameter.normal_()


def test_the_update_equals_a_loop() -> None:
    layer = nn.Linear(5, 3)
    plain = layer.weight.detach().clone()
    update = LowRankUpdate(layer.weight, rank=2, alpha=6.0)
    parametrize.register_parametrization(layer, "weight", update)
    randomize(layer)
    expected = plain.clone()
    for i in range(3):
        for j in range(5):
            for k in range(2):
                expected[i, j] += 6.0 / 2 * update.B[i, k].item() * update.A[k, j].item()
    torch.testing.assert_close(layer.weight, expected)


def test_the_network_does_not_change_at_the_start() -> None:
    embedder, x = make_embedder(), torch.randn(2, 3, 8, 8)
    before = embedder(x)
    add_lora(embedder.backbone, 2)
    assert torch.equal(embedder(x), before)


def test_linear_attention_and_1x1_layers_are_updated_and_nothing_else() -> None:
    embedder = make_embedder()
    add_lora(embedder.backbone, 2, 8)
    updated = [name for name, part in embedder.backbone.named_modules() if parametrize.is_parametrized(part)]
    assert updated == ["mix", "attention", "attention.out_proj", "linear"]
    assert len(embedder.trunk_parameters()) == 2 * 4
    trained = {name for name, p in embedder.named_parameters() if p.requires_grad}
    assert all(".0.A" in name or ".0.B" in name or name.startswith("head.") for name in trained)


def test_gradients_of_both_factors_are_correct() -> None:
    layer = nn.Linear(4, 3).double()
    update = LowRankUpdate(layer.weight, rank=2, alpha=1.0)
    weight = layer.weight.detach()

    def apply(a: Tensor, b: Tensor) -> Tensor:
        return torch.func.functional_call(update, {"A": a, "B": b}, (weight,))

    factors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 4), (3, 2))]
    assert torch.autograd.gradcheck(apply, factors)


def test_merged_weights_give_the_same_network_under_plain_names() -> None:
    embedder, x = make_embedder(), torch.randn(2, 3, 8, 8)
    plain = make_embedder()
    add_lora(embedder.backbone, 3)
    randomize(embedder)
    merged = merge_lora(embedder)
    assert merged.keys() == plain.state_dict().keys()
    plain.load_state_dict(merged)
    torch.testing.assert_close(plain(x), embedder(x))


def test_a_copy_is_independent() -> None:
    embedder, x = make_embedder(), torch.randn(2, 3, 8, 8)
    add_lora(embedder.backbone, 2)
    other = copy.deepcopy(embedder)
    randomize(other)
    assert not torch.allclose(other(x), embedder(x))
    assert len(lora_parameters(other)) == len(lora_parameters(embedder))


def test_frozen_blocks_get_no_update() -> None:
    embedder = create_embedder("efficientnet-lite0", dim=4, train_from="blocks.14")
    add_lora(embedder.backbone, 2, frozen=embedder.frozen_modules())
    updated = [name for name, part in embedder.backbone.named_modules() if parametrize.is_parametrized(part)]
    # expansion and projection of two blocks, and the last layer
    assert len(updated) == 5
    assert all(name.startswith(("blocks.14", "blocks.15", "last")) for name in updated)


def test_a_backbone_without_such_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="needs linear, attention or 1x1 convolution layers"):
        add_lora(create_embedder("features", channels=4, dim=2).backbone, 2)
    with pytest.raises(ValueError, match="lora must be"):
        add_lora(make_embedder().backbone, 0)


@pytest.mark.parametrize("extra", [(), ("ema=0.5",), ("model.train_from=block2", "micro_batch=7")])
def test_a_run_with_lora_resumes_exactly_and_saves_plain_weights(
    extra: tuple[str, ...], drawings: str, tmp_path: Path
) -> None:
    config = configured("pixels", drawings, "proxy-anchor", "model.lora=2", "steps=8", "save_every=0", *extra)
    whole = train(config, tmp_path / "whole", say=lambda _: None, progress=False)
    train(config, tmp_path / "cut", say=lambda _: None, progress=False, stop_after=4)
    cut = train(config, tmp_path / "cut", resume=True, say=lambda _: None, progress=False)
    one, other = (run.embedder().state_dict() for run in (whole, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)
    loaded = Run(tmp_path / "whole")
    assert not lora_parameters(loaded.embedder())
    assert math.isclose(loaded.evaluate()["recall@1"], whole.results()["test"]["recall@1"], abs_tol=1e-6)
    torch.manual_seed(config.seed)
    start = create_embedder("small", dim=8, channels=1).state_dict()
    moved = {name for name in start if not torch.equal(one[name], start[name])}
    assert moved
    assert not any(name.endswith(("stem.0.weight", "conv1.weight")) for name in moved)  # 3x3 kernels stay
