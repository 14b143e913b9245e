"""Every suite of a paper runs, in miniature; and on the papers' own data in their own setting, on tiny copies of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data import builders
from nearfar.suites.cells import CellMaker, suite_cells
from nearfar.suites.results import read_lines, read_results
from nearfar.suites.run import run_suite
from nearfar.suites.suite import Suite
from nearfar.suites.suite_file import open_suite, suite_from_dict, suite_names
from nearfar.suites.table import table
from nearfar.suites.tuning import search_space, suite_trials
from nearfar.training import Config

# a data set of each suite that stands for the others, and by what it is trained in the miniature
SUITES = {
    "dro": "cub-vectors",
    "dro-recover": "cub-vectors",
    "dro-imbalance": "sketches-1024",
    "dro-k": "warm-sketches",
    "profs": "cub-vectors",
    "profs-length": "cub-vectors",
    "profs-classes": "omniglot-vectors",
    "mpa": "cub-vectors",
    "mpa-proxies": "cub-vectors",
    "mpa-merged": "cub-vectors",
    "proxy-isa": "cub-vectors",
    "proxy-isa-penalties": "cub-vectors",
    "proxy-isa-extra": "cub-images",
    "proxy-isa-search": "cub-vectors",
    "proxy-isa-volume": "cub-vectors",
    "proxy-isa-memory": "cub-vectors",
    "proxy-isa-epochs": "cub-vectors",
    "proxy-isa-outliers": "clinc-vectors",
    "proxy-isa-folds": "cub-vectors",
    "fine-tuning": "cars-images",
    "bspml": "cub-vectors",
    "bspml-dims": "cub-vectors",
    "bspml-long-tail": "cub-vectors",
    "bspml-age": "cub-vectors",
}


def tracks_of(name: str) -> set[str | None]:
    return {each.track for each in open_suite(name).data}


def ends(suite: Suite, **changes: Any) -> Suite:
    """One seed, the first and last value of the sweep, and nothing to tune."""
    values = suite.sweep_values
    sweep = {suite.sweep_key: [values[0], values[-1]]} if suite.sweep else None
    data = tuple(replace(each, tune={}) for each in suite.data)
    methods = tuple(replace(each, tune={}) for each in suite.methods)
    return replace(suite, seeds=suite.seeds[:1], sweep=sweep, data=data, methods=methods, **changes)


def only_methods(suite: Suite, *names: str) -> Suite:
    """These methods alone, in the paper's tables too."""
    paper = tuple(
        replace(each, methods={name: row for name, row in each.methods.items() if name in names})
        for each in suite.paper
    )
    methods = tuple(each for each in suite.methods if each.name in names)
    return replace(suite, methods=methods, paper=paper, baseline=None)


@pytest.mark.parametrize("name", SUITES)
def test_every_method_of_a_suite_trains(name: str, vectors: str, drawings: str, tmp_path: Path) -> None:
    data, out = SUITES[name], tmp_path / "r.jsonl"
    # pooling needs images
    is_image_data = data.endswith("-images")
    small = ["epochs=null", "steps=3", "model.dim=8", "data.validation=0", "batches.size=24", "model.pretrained=false"]
    small += ["schedule.warm_up_epochs=0", "images.crop=12"] if is_image_data else []
    if open_suite(name).sweep_key == "model.dim":  # its values are wider than the vectors
        small = [*(each for each in small if not each.startswith("model.dim=")), "model.init=random"]
    suite = ends(open_suite(name), override=tuple(small))
    if suite.sweep_key in ("epochs", "steps"):  # the length of the run is swept
        short = tuple(each for each in small if not each.startswith(("epochs=", "steps=")))
        suite = replace(suite, sweep={suite.sweep_key: [1, 4]}, override=short)
    if suite.sweep_key == "data.train_classes":  # the miniature has few classes
        suite = replace(suite, sweep={suite.sweep_key: [2, 3]})
    given = {data: drawings if is_image_data else vectors}
    failed = run_suite(suite, out, sources=given, only=(data,), workers=0, say=lambda _: None)
    assert failed == 0, [line["message"] for line in read_lines(out) if line["kind"] == "error"]
    text = table(read_results(out))
    assert "missing" not in text.replace("Missing", "missing")
    for method in suite.methods:
        mark = "" if method.swept else " (not swept)"
        assert f"| {method.name}{mark} |" in text
    if suite.paper and data.startswith("cub"):
        tables = [each for each in suite.paper if each.data == "cub" and each.sweep in (None, *suite.sweep_values)]
        assert all(each.table in text for each in tables)
        assert all(f"| {name} (quoted) |" in text for each in tables for name in each.quoted)


@pytest.mark.parametrize("name", SUITES)
def test_a_tuned_contrastive_loss_and_the_untrained_network_are_in_every_table(
    name: str, drawings: str, vectors: str
) -> None:
    suite = replace(open_suite(name), override=("model.pretrained=false",))
    if suite.sweep_key == "data.train_classes":  # the data of this test has fewer classes
        suite = replace(suite, sweep=None, tune=replace(suite.tune, at=None))
    data = (SUITES[name],)
    maker = CellMaker(
        suite, sources={SUITES[name]: vectors if SUITES[name].endswith("-vectors") else drawings}, only=data
    )
    cells = [cell for cell in maker.cells() if cell.method == "contrastive"]
    assert cells
    assert all(cell.config.untrained and cell.config.loss["name"] == "contrastive" for cell in cells)
    trials = [trial for trial in suite_trials(maker) if trial.cell.method == "contrastive"]
    rates = maker.data[0].tune["optimizer.lr"]
    own = next(each.tune for each in suite.methods if each.name == "contrastive")
    combinations = 1 if suite.tune.one_by_one else math.prod(map(len, own.values()))
    assert len(trials) == len(rates) * combinations > 1
    assert {trial.cell.config.optimizer.lr for trial in trials} == set(rates)
    assert {trial.cell.config.loss["name"] for trial in trials} == {"contrastive"}


@pytest.mark.parametrize("name", [name for name in suite_names() if "paper" in tracks_of(name)])
def test_methods_of_a_papers_own_track_share_its_set_up(name: str, drawings: str) -> None:
    suite = open_suite(name)
    data = tuple(each.name for each in suite.data if each.track == "paper")
    maker = CellMaker(suite, sources=dict.fromkeys(data, drawings), only=data)
    for source in maker.data:
        configs = [maker.cell(source, method, suite.sweep_values[0], 0).config for method in suite.methods]
        shared = {(config.model, config.images, config.optimizer.name, config.epochs) for config in configs}
        assert len(shared) == 1, source.name


@pytest.mark.parametrize(("name", "settings"), [("dro", 2), ("mpa", 4), ("mpa-proxies", 4), ("proxy-isa", 4)])
def test_every_method_of_a_table_is_tuned_as_much_as_its_rivals(name: str, settings: int, vectors: str) -> None:
    """The learning rate and as many further values for each; pair losses have fewer settings with more values."""
    maker = CellMaker(open_suite(name), sources={"cub-vectors": vectors}, only=("cub-vectors",))
    counts = {}
    for method in maker.suite.methods:
        space = search_space(maker.suite, maker.data[0], method)
        assert next(iter(space)) == "optimizer.lr"
        assert 2 <= len(space) <= settings
        counts[method.name] = sum(len(values) - 1 for values in space.values())
    assert max(counts.values()) - min(counts.values()) <= 1, counts


def test_nothing_is_searched_on_the_papers_own_data(drawings: str) -> None:
    for name in suite_names():
        suite = open_suite(name)
        for dataset in suite.data:
            if dataset.track == "paper":
                assert all(search_space(suite, dataset, method) == {} for method in suite.methods), name


@pytest.mark.parametrize("name", ["dro", "dro-recover", "mpa", "proxy-isa", "proxy-isa-folds", "fine-tuning"])
def test_the_rivals_of_a_main_table_are_tuned_alike(name: str, vectors: str) -> None:
    suite = open_suite(name)
    assert "contrastive" in [each.name for each in suite.methods]
    tuned = [each for each in suite.data if each.track not in ("paper", "warm-start")]
    given = {each.name: vectors for each in tuned}
    by_place: dict[tuple[str, str], list[Config]] = {}
    for trial in suite_trials(CellMaker(suite, sources=given, only=tuple(given))):
        by_place.setdefault((trial.cell.data, trial.cell.method), []).append(trial.cell.config)
    own = [source.name for source in tuned if source.tuned_on is None]
    assert set(by_place) == {(data, method.name) for data in own for method in suite.methods}
    for (data, _), configs in by_place.items():
        is_image_data = data.endswith("-images")
        rates = [value for source in tuned if source.name == data for value in source.tune["optimizer.lr"]]
        assert [each.optimizer.lr for each in configs] == rates
        assert len(set(rates)) == len(rates) == 4
        assert len({(each.epochs, each.steps) for each in configs}) == 1
        assert not is_image_data or configs[0].steps == 200
        held_out = 0 if suite.folds is not None else 0.5 if data == "cub-vectors" else 0.2
        assert {each.data.validation for each in configs} == {held_out}


def test_clustering_metrics_are_measured(vectors: str, tmp_path: Path) -> None:
    suite = suite_from_dict(
        {
            "name": "clusters",
            "data": ["cub-vectors"],
            "methods": [{"name": "mpa"}],
            "metrics": ["recall@1", "map@r", "nmi", "f1"],
            "override": ["steps=3", "model.dim=8", "data.validation=0.34", "batches.size=24"],
        }
    )
    out = tmp_path / "r.jsonl"
    assert run_suite(suite, out, sources={"cub-vectors": vectors}, workers=0) == 0
    for line in read_lines(out):
        if line["kind"] == "cell":
            assert 0 < line["test"]["nmi"] <= 1
            assert 0 < line["test"]["f1"] <= 1
            assert 0 < line["validation"]["nmi"] <= 1
    assert "| nmi |" in table(read_results(out))


def cub(root: Path) -> Path:
    builders.cub(root, classes=104)
    for number, path in enumerate(sorted((root / "images").rglob("*.jpg"))):
        path.write_bytes(builders.jpeg(number, (40, 36)))
    return root


def cars(root: Path) -> Path:
    names = ["AM General Hummer SUV 2000", *(f"Car {c:03d}" for c in range(194)), "smart fortwo Convertible 2012"]
    for part in ("train", "test"):
        for c, name in enumerate(names):
            builders.write(root / part / name / f"{part}.jpg", builders.jpeg(c, (40, 36)))
    return root


def sop(root: Path) -> Path:
    number = 0
    for name, classes in (("Ebay_train.txt", range(1, 7)), ("Ebay_test.txt", range(7, 11))):
        lines = ["image_id class_id super_class_id path"]
        for c in classes:
            for _ in range(2):
                number += 1
                lines.append(f"{number} {c} 1 bicycle_final/{c}_{number}.JPG")
                builders.write(root / f"bicycle_final/{c}_{number}.JPG", builders.jpeg(number, (40, 36)))
        builders.write(root / name, "\n".join(lines) + "\n")
    return root


def in_shop(root: Path) -> Path:
    rows = [("train", c) for c in (1, 2, 3, 4) for _ in range(3)]
    rows += [(part, c) for c in (5, 6, 7) for part in ("query", "gallery", "gallery")]
    listing = [f"img/WOMEN/Tees/id_{c:08d}/0{i}_front.jpg id_{c:08d} {part}" for i, (part, c) in enumerate(rows)]
    text = "\n".join([str(len(rows)), "image_name item_id evaluation_status", *listing]) + "\n"
    builders.write(root / "Eval/list_eval_partition.txt", text)
    for i, line in enumerate(listing):
        builders.write(root / "Img" / line.split()[0], builders.jpeg(i, (40, 36)))
    return root


LAYOUTS: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "cub": (cub, "dro", "topk-b"),
    "cars": (cars, "proxy-isa", "proxy-isa"),
    "sop": (sop, "mpa", "mpa-ap"),
    "in-shop": (in_shop, "dro", "ms"),
}
# the networks of the papers at a size for a test, without their public weights
TINY = ("data.allow_partial=true", "model.pretrained=false", "images.crop=32", "images.resize=36", "steps=1")


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_papers_own_data_and_setting(name: str, tmp_path: Path) -> None:
    build, suite_name, method = LAYOUTS[name]
    suite, source, out = open_suite(suite_name), str(build(tmp_path / name)), tmp_path / "r.jsonl"
    everything = ends(suite, override=("data.allow_partial=true",))
    configs = {cell.method: cell.config for cell in suite_cells(everything, sources={name: source}, only=(name,))}
    assert set(configs) == {each.name for each in suite.methods}
    assert all((each.setting, each.steps, each.data.workers) == ("paper", None, 2) for each in configs.values())
    assert all(each.epochs is not None and each.epochs >= 60 for each in configs.values())
    config = configs[method]
    assert config.model.backbone == "bn-inception"
    want = {
        "cub": (config.batches.classes, 16),
        "cars": (config.loss.get("sensitivity"), 0.4),
        "sop": (config.loss.get("proxies_per_class"), 2),
        "in-shop": (config.batches.classes, 128),
    }
    assert want[name][0] == want[name][1]

    one = ends(suite, override=(*TINY, "data.workers=0", "batches.size=8", "batches.classes=2", "batches.per_class=2"))
    assert (
        run_suite(only_methods(one, method), out, sources={name: source}, only=(name,), workers=0, say=lambda _: None)
        == 0
    )
    (cell,) = [line for line in read_lines(out) if line["kind"] == "cell"]
    assert cell["selected_by"] == "last"
    shown = next(each for each in suite.data if each.name == name).metrics or ()
    assert set(cell["test"]) >= set(shown)
    text = table(read_results(out))
    assert "Differences from the paper: the last epoch is scored" in text
    assert f"Datasets that were not run: {', '.join(each.name for each in suite.data if each.name != name)}." in text


def test_fine_tuning_on_a_folder_of_images(tmp_path: Path) -> None:
    for c in range(6):
        for i in range(4):
            builders.write(tmp_path / "birds" / f"kind {c}" / f"{i}.jpg", builders.jpeg(10 * c + i, (40, 36)))
    small = ("model.pretrained=false", "images.crop=32", "steps=2", "batches.size=6")
    suite = only_methods(ends(open_suite("proxy-isa-extra"), override=small), "proxy-isa")
    given, out = {"cub-images": str(tmp_path / "birds")}, tmp_path / "r.jsonl"
    (cell,) = suite_cells(suite, sources=given, only=("cub-images",))
    model = cell.config.model
    assert (model.backbone, model.pooling, model.freeze_bn) == ("efficientnet-lite0", "average+max", True)
    assert (cell.config.schedule.warm_up_epochs, cell.config.data.validation) == (1, 0)
    assert run_suite(suite, out, sources=given, only=suite.dataset_names(["fine-tuning"])[:1], workers=0) == 0
    (line,) = [line for line in read_lines(out) if line["kind"] == "cell"]
    assert (line["steps"], line["selected_by"]) == (2, "last")
    assert "| proxy-isa |" in table(read_results(out))
