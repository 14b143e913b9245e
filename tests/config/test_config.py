from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from nearfar import samplers
from nearfar.config import recipes
from nearfar.config.defaults import OURS
from nearfar.config.merge import from_dict, gather_losses, resolve
from nearfar.config.schema import Batches
from nearfar.config.tree import merge_trees, parse_setting, read_config
from nearfar.errors import NearfarError


@pytest.mark.parametrize("name", recipes.names())
@pytest.mark.parametrize("kind", list(OURS))
def test_every_recipe_resolves_for_every_kind_of_data_and_round_trips_through_yaml(
    name: str, kind: str, tmp_path: Path
) -> None:
    config = resolve(kind, recipe=name)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert from_dict(read_config(tmp_path / "config.yaml")) == config
    recipe = gather_losses(recipes.load(name))  # a recipe may add several losses
    assert config.loss == merge_trees(recipe["loss"], recipe.get("ours", {}).get(kind, {}).get("loss", {}))
    assert config.model.backbone == OURS[kind]["model"]["backbone"]


@pytest.mark.parametrize("name", recipes.names())
def test_paper_setting_uses_the_values_of_the_recipe(name: str) -> None:
    recipe, config = recipes.load(name), resolve("files", recipe=name, settings=["setting=paper"])
    assert config.epochs == recipe["epochs"]
    assert config.steps is None
    for section in ("model", "optimizer", "images", "schedule", "batches"):
        for key, value in recipe[section].items():
            used = getattr(getattr(config, section), key)
            assert (list(used) if isinstance(used, tuple) else used) == value, (section, key)


@pytest.fixture
def tuned_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the recipe dro-topk an `ours` section."""
    plain = recipes.text
    section = """\
ours:
  features:
    loss:
      uncertainty:
        k: 7  # ours: test
    optimizer:
      lr: 0.25  # ours: test
  pixels:
    schedule:
      warm_up: 0.5  # ours: test
model:
"""
    monkeypatch.setattr(recipes, "text", lambda name: plain(name).replace("model:\n", section, 1))


@pytest.mark.usefixtures("tuned_recipe")
def test_ours_applies_to_its_kind_of_data_over_the_method_and_below_settings() -> None:
    config = resolve("features", recipe="dro-topk")
    assert config.loss["uncertainty"] == {"name": "topk", "k": 7}
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.25, OURS["features"]["optimizer"]["weight_decay"])
    assert resolve("features", recipe="dro-topk", settings=["optimizer.lr=0.5"]).optimizer.lr == 0.5
    pixels = resolve("pixels", recipe="dro-topk")
    assert pixels.loss["uncertainty"]["k"] == "2B"
    assert (pixels.optimizer.lr, pixels.schedule.warm_up) == (OURS["pixels"]["optimizer"]["lr"], 0.5)


@pytest.mark.usefixtures("tuned_recipe")
def test_ours_does_not_apply_in_the_setting_of_the_paper() -> None:
    recipe = recipes.load("dro-topk")
    config = resolve("features", recipe="dro-topk", settings=["setting=paper"])
    assert config.loss["uncertainty"]["k"] == "2B"
    assert config.optimizer.lr == recipe["optimizer"]["lr"]


@pytest.mark.usefixtures("tuned_recipe")
def test_ours_is_shown_as_a_default() -> None:
    shown = recipes.annotate("dro-topk")
    mark = "# Our changes for each kind of data. They override the values above unless setting=paper:\nours:\n"
    default, mark, rest = shown.partition(mark)
    assert "# Applies with our defaults and with --set setting=paper:\nloss:" in default
    assert mark
    ours, _, paper = rest.partition("# Applies only with --set setting=paper:")
    assert "k: 7" in ours
    assert "\nmodel:" in paper


def test_later_sources_override_earlier_ones() -> None:
    file = {"optimizer": {"lr": 0.5, "weight_decay": 0.25}}
    config = resolve("features", recipe="proxy-anchor", file=file, settings=["optimizer.lr=0.75"])
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.75, 0.25)
    assert resolve("features", recipe="triplet", file={"recipe": "n-pair"}).loss["name"] == "n-pair"


def test_benchmark_uses_the_values_for_that_dataset() -> None:
    assert resolve("files", recipe="proxy-isa", settings=["benchmark=cars"]).loss["sensitivity"] == 0.4


def test_a_different_loss_does_not_inherit_options() -> None:
    config = resolve("features", recipe="multi-similarity", settings=["loss.name=triplet"])
    assert config.loss == {"name": "triplet"}


def test_a_different_sampler_does_not_inherit_options_and_its_config_resolves(tmp_path: Path) -> None:
    config = resolve("pixels", recipe="c-profs-hncm", settings=["batches.name=pk"])
    assert (config.batches.name, config.batches.rho, config.batches.mining) == ("pk", None, None)
    assert (config.batches.classes, config.batches.per_class) == (32, 4)
    config = resolve("pixels", recipe="supcon", settings=["batches.name=shuffled"])
    assert config.batches == Batches()
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert resolve("pixels", file=read_config(tmp_path / "config.yaml")) == config


@pytest.mark.parametrize(
    ("recipe", "setting", "owner"),
    [
        ("proxy-anchor", "batches.per_class=4", "only to batches.name=pk or profs, but batches.name is shuffled"),
        ("proxy-anchor", "batches.epoch=classes", "only to batches.name=pk, but batches.name is shuffled"),
        ("contrastive", "batches.rho=3", "only to batches.name=profs, but batches.name is pk: set batches.name=profs"),
        ("c-profs", "batches.epoch=classes", "only to batches.name=pk, but batches.name is profs"),
    ],
)
def test_a_setting_that_the_sampler_does_not_read_is_an_error(recipe: str, setting: str, owner: str) -> None:
    with pytest.raises(NearfarError, match=f"^{setting} applies {owner}"):
        resolve("pixels", recipe=recipe, settings=[setting])


def test_a_shared_setting_that_the_sampler_does_not_read_is_left_out() -> None:
    shared = ["batches.size=32", "batches.per_class=8", "batches.rho=3"]
    batches = resolve("pixels", recipe="proxy-anchor", settings=shared, shared=True).batches
    assert batches == Batches(size=32)


def test_every_setting_of_batches_is_read_by_a_sampler() -> None:
    known = {each.name for each in fields(Batches)} - {"name", "options"}
    assert known <= {key for name in samplers.names() for key in samplers.options(name)}


def test_steps_replace_epochs_and_vice_versa() -> None:
    assert resolve("files", recipe="triplet", settings=["steps=7"]).epochs is None
    assert resolve("pixels", recipe="triplet", settings=["epochs=7"]).steps is None
    with pytest.raises(NearfarError, match="epochs or steps, not both"):
        resolve("files", recipe="triplet", settings=["steps=7", "epochs=7"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer.lrr=1", "optimizer has no 'lrr'; did you mean 'lr'"),
        ("optimiser.lr=1", "the configuration has no 'optimiser'; did you mean 'optimizer'"),
        ("optimizer.lr=fast", "optimizer.lr must be a number, got 'fast'"),
        ("optimizer.lr=0", "optimizer.lr must be above 0"),
        ("optimizer=3", "optimizer must be a mapping"),
        ("optimizer.name=adma", "did you mean 'adam'"),
        ("data.validation=1", "data.validation must be below 1"),
        ("steps=2.5", "steps must be a whole number or null"),
        ("steps", "a setting must be KEY=VALUE"),
        ("track=[[", "not valid YAML"),
        ("select.by=luck", "select.by must be one of"),
        ("schedule.name=step", "schedule.name=step needs schedule.every"),
        ("setting=theirs", "ours or paper"),
        ("recipe=proxy-anker", "did you mean 'proxy-anchor'"),
    ],
)
def test_errors_name_the_setting_and_the_fix(setting: str, message: str) -> None:
    with pytest.raises(NearfarError, match=message):
        resolve("features", recipe="triplet", settings=[setting])


def test_a_missing_loss_is_an_error() -> None:
    with pytest.raises(NearfarError, match="no loss"):
        resolve("features")


def test_values_are_read_as_yaml() -> None:
    assert parse_setting("a.b=true") == (["a", "b"], True)
    assert parse_setting("a=1e-4") == (["a"], 1e-4)
    assert parse_setting("a=") == (["a"], None)


def test_a_file_without_a_table_of_settings_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("- 1\n")
    with pytest.raises(NearfarError, match="must contain a mapping"):
        read_config(path)
    path.write_text("a: [")
    with pytest.raises(NearfarError, match="cannot be read as YAML"):
        read_config(path)


def test_an_explicit_batch_size_replaces_the_classes_of_a_recipe() -> None:
    def batches(*settings: str) -> tuple[int | None, int | None]:
        config = resolve("features", recipe="multi-similarity", settings=settings).batches
        return config.size, config.classes

    assert batches() == (None, 16)
    assert batches("batches.size=40") == (40, None)
    assert batches("batches.size=40", "batches.classes=4") == (40, 4)
    assert batches("batches.per_class=4") == (None, 16)


def test_a_suite_compares_recipes_without_our_changes() -> None:
    own, suite = (resolve("features", recipe="bspml", shared=shared).loss["threshold"] for shared in (False, True))
    assert (own, suite) == (recipes.load("bspml")["ours"]["features"]["loss"]["threshold"], 1.0)
    assert own != suite
