"""The schema describes every setting, its page is up to date, and unknown keys are answered with the right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearfar import samplers
from nearfar.config import recipes
from nearfar.config.keys import all_settings, neutral_settings
from nearfar.config.merge import resolve
from nearfar.config.names import ALIASES
from nearfar.config.reference import config_schema, recipe_schema, settings_page
from nearfar.config.schema import Config
from nearfar.config.setting import walk
from nearfar.errors import NearfarError

ROOT = Path(__file__).parent.parent.parent


def test_the_page_of_settings_is_what_the_schema_says() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == settings_page(), "run: nearfar settings --markdown > docs/settings.md"


def test_every_setting_has_a_sentence_and_a_default_that_fits() -> None:
    for key, each, _ in walk(Config):
        about = all_settings()[key]
        assert about.help.endswith("."), key
        about.check(key, each.default)
        assert each.default is not None or "null" in about.help or "Default:" in about.help, key


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lr", "'optimizer.lr'"),
        ("batch_size", "'batches.size'"),
        ("learning_rate", "'optimizer.lr'"),
        ("num_workers", "'data.workers'"),
        ("embedding_size", "'model.dim'"),
        ("num_epochs", "'epochs'"),
        ("epoch", "'epochs'"),
        ("workers", "'data.workers'"),
        ("backbone", "'model.backbone'"),
        ("dim", "'model.dim'"),
        ("optimiser.lr", "'optimizer'"),
        ("optimizer.learning_rate", "'lr'"),
        ("optimizer.batch_size", "'batches.size'"),
        ("optimizer.weigth_decay", "'weight_decay'"),
        ("data.noise.rat", "'rate'"),
        ("wieght_decay", "'optimizer.weight_decay'"),
        ("patience", "'batches.patience' or 'select.patience'"),
    ],
)
def test_an_unknown_key_is_answered_with_the_one_that_was_meant(key: str, meant: str) -> None:
    with pytest.raises(NearfarError) as caught:
        resolve("features", recipe="triplet", settings=[f"{key}=1"])
    assert f"; did you mean {meant}? Known: " in str(caught.value)


@pytest.mark.parametrize("key", ["temperature", "foo", "optimizer.foo", "num_layers", "name", "verbose"])
def test_a_far_fetched_suggestion_is_not_made(key: str) -> None:
    with pytest.raises(NearfarError) as caught:
        resolve("features", recipe="triplet", settings=[f"{key}=1"])
    assert "did you mean" not in str(caught.value)


def test_aliases_lead_to_settings() -> None:
    assert {key for key in ALIASES.values() if not key.startswith("loss.")} <= set(all_settings())


def test_settings_that_do_not_change_the_result() -> None:
    assert {"device", "threads", "data.workers", "track"} <= set(neutral_settings())
    assert not {"seed", "optimizer.lr", "autocast"} & set(neutral_settings())


def test_a_new_sampler_brings_options_of_its_own() -> None:
    class Every(samplers.Shuffled):
        def __init__(self, labels: object, *, size: int = 128, window: int = 3, seed: int = 0) -> None:
            super().__init__(list(labels), size=size, seed=seed)  # type: ignore[call-overload]

    samplers.register("every")(Every)
    try:
        config = resolve("features", recipe="triplet", settings=["batches.name=every", "batches.window=5"])
        assert config.batches.options == {"window": 5}
        assert resolve("features", file=config.to_dict()) == config
        with pytest.raises(NearfarError, match=r"batches\.window=5 applies only to batches\.name=every, but"):
            resolve("features", recipe="triplet", settings=["batches.window=5"])
    finally:
        del samplers.batch_sampler.SAMPLERS._entries["every"]


def test_the_json_schemas_know_the_keys_that_are_in_use() -> None:
    def check(tree: dict[str, object], schema: dict[str, object], where: str) -> None:
        known = schema["properties"]
        assert isinstance(known, dict)
        for key, value in tree.items():
            assert key in known, f"{where}.{key}"
            if isinstance(value, dict) and known[key].get("additionalProperties") is False:
                check(value, known[key], f"{where}.{key}")

    config, recipe = config_schema(), recipe_schema()
    names = config["properties"]["loss"]["properties"]["name"]["anyOf"][0]["enum"]
    assert "multi-similarity" in names
    for name in recipes.names():
        check(recipes.load(name), recipe, name)
        check(resolve("pixels", recipe=name).to_dict(), config, name)


@pytest.mark.parametrize("name", recipes.names())
def test_recipes_have_a_purpose_and_a_group_and_are_marked(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe["purpose"].endswith(".")
    assert recipe["group"] in recipes.GROUPS
    marked = recipes.annotate(name)
    default, _, paper = marked.partition("# Applies only with --set setting=paper:")
    assert "\nloss:" in default
    assert "\noptimizer:" in paper
    assert [line for line in marked.splitlines() if line in recipes.text(name).splitlines()]
