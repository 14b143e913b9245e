"""Every recipe loads, its loss can be created, and each of its numbers names its source."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from nearfar import losses
from nearfar.config import recipes
from nearfar.config.merge import resolve
from nearfar.data import Manifest
from nearfar.losses.triplet import paired_triplets
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs, pair_masks
from nearfar.samplers import Profs
from nearfar.training.components import make_loss, make_pacer
from nearfar.training.projection import Projection

EVERY = pytest.mark.parametrize("name", recipes.names())
PROFS = {f"{loss}-profs{mined}" for loss in "ctlnam" for mined in ("", "-hncm")}
METHODS = {"dro-topk", "dro-topk-pn", "dro-kl", "dro-kl-g", "mpa", "mpa-dw", "mpa-ap", "proxy-isa", *PROFS}
HARD = {"contrastive-hard", "triplet-hard", "margin-hard"}
BASELINES = set(losses.names()) - {"dro"}
SECTIONS = {
    "name",
    "purpose",
    "group",
    "paper",
    "loss",
    "batches",
    "model",
    "images",
    "optimizer",
    "schedule",
    "epochs",
    "data",
}


def create_loss(recipe: dict[str, Any]) -> torch.nn.Module:
    if isinstance(recipe["loss"], list):
        return losses.create(recipe["loss"])
    options = dict(recipe["loss"])
    name = options.pop("name")
    if hasattr(losses.loss_class(name), "parameter_groups"):
        options |= {"classes": 5, "dim": 8}
    return losses.create(name, **options)


def test_every_method_and_every_loss_has_a_recipe() -> None:
    assert set(recipes.names()) >= METHODS | BASELINES | HARD


@EVERY
def test_recipe_is_complete(name: str) -> None:
    recipe = recipes.load(name)
    assert set(recipe) - {"setup", "projection", "pacing", "ours"} == SECTIONS
    assert ("projection" in recipe) == (recipe["batches"]["name"] == "profs")
    assert recipe["name"] == name
    assert recipe["data"]
    for data in (None, *recipe["data"]):
        for_data = recipes.load(name, data=data)
        assert for_data["epochs"] >= 1
        assert for_data["optimizer"]["lr"] > 0
        batches = for_data["batches"]
        keys = {
            "shuffled": {"name", "size"},
            "pk": {"name", "classes", "per_class", "epoch"},
            "profs": {"name", "classes", "per_class", "rho"},
        }[batches["name"]]
        assert set(batches) - {"mining", "seeds_per_batch"} == keys
        assert ("mining" in batches) == name.endswith("-hncm")
        schedule = for_data["schedule"]
        assert (
            set(schedule) - {"warm_up_epochs"}
            == {
                "constant": {"name"},
                "step": {"name", "every", "factor"},
            }[schedule["name"]]
        )
        assert ("gem_p" in for_data["model"]) == (for_data["model"]["pooling"] == "gem")


@EVERY
def test_loss_can_be_created_and_called(name: str) -> None:
    recipe = recipes.load(name)
    for data in (None, *recipe["data"]):
        loss = create_loss(recipes.load(name, data=data))
        x = torch.randn(10, 8, requires_grad=True)
        value = loss(x, torch.arange(5).repeat(2))
        value.backward()
        assert value.isfinite()
        assert x.grad is not None
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", sorted(PROFS))
def test_profs_sampler_can_be_created_and_trained_on(name: str) -> None:
    recipe = recipes.load(name)
    options = dict(recipe["batches"])
    assert options.pop("name") == "profs"
    labels = torch.arange(100).repeat_interleave(5)
    sampler = Profs(labels, **options)
    assert sampler.size == 128
    assert sampler.steps == {2: 10, 4: 19}[options["per_class"]]
    assert (sampler.hncm is not None) == name.endswith("-hncm")
    batch = next(iter(sampler))
    loss = create_loss(recipe)(torch.randn(128, 8), labels[batch], representatives=sampler.representatives)
    assert loss > 0
    assert Projection([torch.zeros(1)], **recipe["projection"]).weight == 1e-3


@pytest.mark.parametrize("name", sorted(HARD))
def test_hard_baselines_differ_from_the_plain_ones_in_mining_only(name: str) -> None:
    hard, plain = recipes.load(name), recipes.load(name.removesuffix("-hard"))
    if name == "triplet-hard":  # one triplet per positive; all pairs of a positive and a closest negative are nine
        assert hard["loss"].pop("mining") == "paired"
    else:
        assert hard["loss"].pop("mine") == "closest-negatives"
    different = ("name", "purpose", "ours")
    assert {key: value for key, value in hard.items() if key not in different} == {
        key: value for key, value in plain.items() if key not in different
    }


@EVERY
def test_proxies_have_their_own_learning_rate(name: str) -> None:
    recipe = recipes.load(name)
    parts = recipe["loss"] if isinstance(recipe["loss"], list) else [recipe["loss"]]
    trains_proxies = any(hasattr(losses.loss_class(part["name"]), "parameter_groups") for part in parts)
    assert ("proxy_lr_multiplier" in recipe["optimizer"]) == trains_proxies


@EVERY
def test_every_number_names_its_source(name: str) -> None:
    for line in recipes.text(name).splitlines():
        if re.match(r" *\w+: ([-\d\[]|true|false)", line):
            _, _, comment = line.partition("#")
            assert re.match(r" (paper|released code|ours)\b", comment), line


@EVERY
def test_options_of_ours_are_options_of_the_loss_and_of_the_pacer(name: str) -> None:
    for kind in recipes.KINDS:
        config = resolve(kind, width=8, recipe=name)
        make_loss(config, classes=5, dim=8)
        make_pacer(
            config, Manifest(labels=[0, 1], classes=("a", "b"), split=["train"] * 2, features=torch.eye(2).numpy())
        )


@EVERY
def test_datasets_change_only_keys_of_the_recipe(name: str) -> None:
    recipe = recipes.load(name)

    def inside(changes: dict[str, Any], base: dict[str, Any]) -> None:
        for key, value in changes.items():
            assert key in base
            if isinstance(value, dict):
                inside(value, base[key])

    for changes in recipe["data"].values():
        inside(changes, recipe)


def test_settings_of_the_papers() -> None:
    """A few settings that the papers print."""
    inshop = recipes.load("dro-topk", data="inshop")
    assert inshop["batches"]["classes"] * inshop["batches"]["per_class"] == 640
    assert recipes.load("dro-kl-g", data="cars")["loss"]["uncertainty"]["gamma"] == 0.001
    assert recipes.load("mpa", data="sop")["loss"]["proxies_per_class"] == 2
    assert [recipes.load("mpa-ap", data=d)["batches"]["size"] for d in ("cub", "cars", "sop")] == [180, 64, 32]
    assert recipes.load("proxy-isa", data="sop")["optimizer"] == recipes.load("proxy-isa")["optimizer"] | {
        "name": "adamw",
        "lr": 6e-4,
    }
    assert recipes.load("triplet", data="sop")["optimizer"]["lr"] == 1e-4


def test_unknown_names_are_errors_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match="did you mean 'proxy-anchor'"):
        recipes.load("proxy-ancor")
    with pytest.raises(ValueError, match="data must be one of"):
        recipes.load("mpa", data="inshop")
    with pytest.raises(ValueError, match="did you mean 'optimizer'"):
        recipes.check({"optimiser": {}})
    with pytest.raises(ValueError, match="optimizer has no 'weight_deacy'; did you mean 'weight_decay'"):
        recipes.check({"data": {"cub": {"optimizer": {"weight_deacy": 0}}}})
    with pytest.raises(ValueError, match="ours has no 'feature'; did you mean 'features'"):
        recipes.check({"ours": {"feature": {}}})
    with pytest.raises(ValueError, match=r"ours\.features has no 'optimiser'; did you mean 'optimizer'"):
        recipes.check({"ours": {"features": {"optimiser": {}}}})
    with pytest.raises(ValueError, match="optimizer has no 'lrr'; did you mean 'lr'"):
        recipes.check({"ours": {"features": {"optimizer": {"lrr": 1}}}})
    with pytest.raises(ValueError, match=r"ours\.files has no 'epochs'"):
        recipes.check({"ours": {"files": {"epochs": 3}}})


@pytest.mark.parametrize("name", ["bspml", "spms", "fastap", "rdml", "snr"])
def test_plain_sgd_has_no_momentum(name: str) -> None:
    """The paper of BSPML trains them with SGD and states no momentum."""
    config = resolve("files", recipe=name, settings=["setting=paper"])
    assert (config.optimizer.name, config.optimizer.momentum) == ("sgd", 0.0)


@pytest.mark.parametrize("name", sorted(PROFS | HARD))
def test_profs_and_its_baselines_use_the_second_beta_of_the_paper(name: str) -> None:
    assert resolve("files", recipe=name, settings=["setting=paper"]).optimizer.betas == (0.9, 0.99)


def test_triplet_hard_has_as_many_triplets_as_positives() -> None:
    """T-PROFS has one triplet per positive pair of a representative, so its baseline has as many per anchor."""
    labels = torch.arange(8).repeat_interleave(4)
    loss = create_loss(recipes.load("triplet-hard"))
    batch = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    pairs = Pairs(cosine_matrix(batch), *pair_masks(labels))
    gap, mass = paired_triplets(pairs, by_similarity=True)
    assert mass.sum(1).tolist() == [3.0] * 32
    torch.testing.assert_close(loss(batch, labels), loss.mean_cost(gap, mass))
