"""Plots of runs and results show what the run has, and are the same bytes each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from nearfar.cli import main
from nearfar.errors import NearfarError
from nearfar.losses.proxy_isa import progress
from nearfar.runs import CHECKPOINT
from nearfar.suites.plots import (
    draw_compactness,
    draw_embedding_space,
    draw_overfitting,
    draw_penalty_decay,
    draw_settings_grid,
    draw_similarity,
    write_plot,
)
from nearfar.suites.plots.trained_run import load_trained_run
from nearfar.suites.results import ResultsFile
from nearfar.suites.suite_file import suite_from_dict
from nearfar.training import Run, train
from training_cases import configured


@pytest.fixture(scope="module")
def runs(vectors: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three proxies a class, one of Proxy-ISA, one of a pair loss, and one on other data; of six epochs."""
    folder = tmp_path_factory.mktemp("runs")
    made = {
        "mpa": ("mpa", ("loss.proxies_per_class=3",)),
        "isa": ("proxy-isa", ("loss.volume=20", "log_train=true")),
        "ms": ("triplet", ("log_train=true",)),
        "fewer": ("proxy-isa", ("data.validation=0.5",)),
    }
    for name, (recipe, settings) in made.items():
        config = configured("features", vectors, recipe, "steps=24", "data.validation=0.34", *settings)
        train(config, folder / name, say=lambda _: None)
    return folder


def points(axes: Any) -> list[Any]:
    return [np.asarray(each.get_offsets()) for each in axes.collections]


def test_what_is_shown_is_the_end_of_training(runs: Path) -> None:
    found = load_trained_run(runs / "mpa")
    assert found.proxies is not None
    assert found.proxies.shape == (4, 3, 8)  # six training classes, two of them held out
    torch.testing.assert_close(found.proxies.norm(dim=2), torch.ones(4, 3))
    torch.testing.assert_close(found.embeddings.norm(dim=1), torch.ones(80))
    # a proxy is nearer to the samples of its own class than to those of others
    mean = torch.stack([found.embeddings[torch.from_numpy(found.data.labels == c)].mean(0) for c in range(4)])
    cosines = torch.einsum("ckd,ed->cke", found.proxies, mean).mean(1)
    assert cosines.argmax(1).tolist() == [0, 1, 2, 3]
    assert load_trained_run(runs / "mpa", "test").proxies is None
    assert load_trained_run(runs / "ms").proxies is None
    assert len(load_trained_run(runs / "mpa", "val").data.compact().classes) == 2


def test_the_map_has_all_samples_and_a_star_for_each_proxy(runs: Path) -> None:
    (axes,) = draw_embedding_space([runs / "mpa"]).axes
    samples, stars = points(axes)[::2], points(axes)[1::2]
    assert [len(each) for each in samples] == [20] * 4
    assert [len(each) for each in stars] == [3] * 4
    (axes,) = draw_embedding_space([runs / "mpa"], split="test", classes=3, points=30).axes
    assert sum(map(len, points(axes))) == 30
    assert "test" in axes.get_title()
    assert "stars" not in axes.get_title()


def test_similarities_are_cosines_of_the_same_samples(runs: Path) -> None:
    proxies, samples, _ = draw_similarity([runs / "mpa"], classes=3, per_class=2).axes
    ours, beside = samples.images[0].get_array(), proxies.images[0].get_array()
    assert ours.shape == (6, 6)
    assert beside.shape == (6, 9)
    np.testing.assert_allclose(np.diag(ours), 1, atol=1e-5)
    np.testing.assert_allclose(ours, ours.T, atol=1e-6)
    assert np.abs(beside).max() <= 1 + 1e-5
    own = [beside[i, 3 * (i // 2) : 3 * (i // 2) + 3].mean() for i in range(6)]
    assert np.mean(own) > beside.mean() + 0.2
    assert len(draw_similarity([runs / "ms"], split="test").axes) == 2  # no proxies: one map and the scale


def test_several_maps_show_the_same_samples(runs: Path) -> None:
    alone = draw_embedding_space([runs / "isa"], classes=3, points=30).axes[0]
    figure = draw_embedding_space([runs / "mpa", runs / "isa", runs / "ms"], classes=3, points=30)
    assert [axes.get_title() for axes in figure.axes] == ["mpa", "proxy-isa", "triplet"]
    assert "30 samples of 3 classes, proxies as stars" in figure.get_suptitle()
    for axes, stars in zip(figure.axes, (3, 1, 0), strict=True):
        assert [len(each) for each in points(axes)] == [10, stars] * 3
        names = [each.get_text() for each in axes.texts]
        assert names == [each.get_text() for each in alone.texts]
    for one, beside in zip(points(alone), points(figure.axes[1]), strict=True):
        np.testing.assert_array_equal(one, beside)  # a run looks the same alone and beside others
    twice = draw_embedding_space([runs / "isa", runs / "isa"], split="test", classes=2, points=20)
    assert [axes.get_title() for axes in twice.axes] == ["proxy-isa (isa)"] * 2
    for draw in (draw_embedding_space, draw_similarity):
        with pytest.raises(
            NearfarError, match=r"fewer: its train split has different samples or labels than that of .*isa"
        ):
            draw([runs / "isa", runs / "fewer"])


def test_several_similarities_are_of_the_same_samples(runs: Path) -> None:
    figure = draw_similarity([runs / "mpa", runs / "isa", runs / "ms"], classes=3, per_class=2)
    *panels, _ = figure.axes
    assert [axes.get_title() for axes in panels] == ["mpa", "proxy-isa", "triplet", "", "", ""]
    assert [axes.get_xlabel() for axes in panels] == ["proxies", "proxies", "", "samples", "samples", "samples"]
    assert not panels[2].images  # the pair loss has no proxies
    alone = draw_similarity([runs / "isa"], classes=3, per_class=2).axes
    for one, beside in ((alone[0], panels[1]), (alone[1], panels[4])):
        np.testing.assert_array_equal(one.images[0].get_array(), beside.images[0].get_array())
    assert panels[0].images[0].get_array().shape == (6, 9)


def test_compactness_shows_what_the_logs_have(runs: Path) -> None:
    (axes,) = draw_compactness([runs / "isa", runs / "ms"]).axes
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["isa, proxies", "isa, samples", "ms, samples"]
    entries = [each for each in Run(runs / "isa").log() if each["kind"] == "epoch"]
    for name in ("proxies", "samples"):
        assert lines[f"isa, {name}"].get_ydata() == pytest.approx([each["compactness"][name] for each in entries])
        assert list(lines[f"isa, {name}"].get_xdata()) == [each["epoch"] + 1 for each in entries]
    with pytest.raises(
        NearfarError, match=r"mpa: the log has no compactness values for each epoch: train with log_train=true"
    ):
        draw_compactness([runs / "isa", runs / "mpa"])


def test_decay_shows_the_penalties_of_the_loss(runs: Path) -> None:
    (axes,) = draw_penalty_decay(runs / "isa").axes
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in axes.lines}
    want = progress(torch.tensor([150]), torch.ones(1), volume=20.0, sensitivity=0.9, margin=0.1, tau=1.5)
    assert lines["sigma"][150] == pytest.approx(float(want.sigma))
    assert lines["nu"][150] == pytest.approx(float(want.nu))
    assert lines["1 / max(1, E)"][150] == pytest.approx(1 / float(want.effective))
    assert lines["sigma"][0] == lines["nu"][0] == 1
    assert len(lines["sigma"]) == 201
    with pytest.raises(NearfarError, match="needs a run with the loss proxy-isa, but this run has mpa"):
        draw_penalty_decay(runs / "mpa")


def test_overfitting_shows_what_the_logs_have(runs: Path) -> None:
    (axes,) = draw_overfitting([runs / "mpa", runs / "isa"], metric="map@r").axes
    assert [line.get_label() for line in axes.lines] == ["mpa, validation", "isa, train", "isa, validation"]
    entries = [each for each in Run(runs / "isa").log() if each["kind"] == "epoch"]
    assert axes.lines[2].get_ydata() == pytest.approx([100 * each["validation"]["map@r"] for each in entries])
    assert list(axes.lines[2].get_xdata()) == [each["epoch"] + 1 for each in entries]
    with pytest.raises(NearfarError, match="has no mrr scores after each epoch"):
        draw_overfitting([runs / "mpa"], metric="mrr")


def results_of(path: Path, selected_by: str = "validation") -> Path:
    """Recall@1 of margin + k, in hundredths; one seed of a field is missing, and all of another."""
    tree = {
        "name": "s",
        "data": [{"name": "d"}],
        "methods": [
            {"name": "wide", "settings": ["loss.margin=0.3"]},
            {"name": "narrow", "settings": ["loss.margin=0.1"]},
            {"name": "other"},
        ],
        "sweep": {"loss.k": [2, 1]},
        "seeds": [0, 1],
        "metrics": ["recall@1"],
    }
    suite = suite_from_dict(tree)
    places = [
        {"data": "d", "method": m.name, "sweep": k, "seed": s, "id": f"{m.name}{k}{s}"}
        for m in suite.methods
        for k in (2, 1)
        for s in (0, 1)
    ]
    with ResultsFile(path) as file:
        file.append({"kind": "suite", "suite": suite.to_dict(), "places": places})
        for place in places:
            margin = {"wide": 0.3, "narrow": 0.1}.get(str(place["method"]), 0.9)
            if place["id"] not in ("wide21", "narrow10", "narrow11"):
                scores = {"recall@1": margin + 0.01 * place["sweep"]}  # type: ignore[operator]
                cell = {"kind": "cell", "id": place["id"], "test": scores, "untrained": scores}
                file.append({**cell, "selected_by": selected_by})
    return path


def test_a_map_of_two_settings_is_ordered_by_their_values(tmp_path: Path) -> None:
    path = results_of(tmp_path / "r.jsonl")
    axes, _ = draw_settings_grid(path, x="loss.k", y="loss.margin").axes
    np.testing.assert_allclose(axes.images[0].get_array().filled(np.nan), [[np.nan, 12.0], [31.0, 32.0]])
    assert [each.get_text() for each in axes.get_xticklabels()] == ["1", "2"]
    assert [each.get_text() for each in axes.get_yticklabels()] == ["0.1", "0.3"]
    assert sorted(each.get_text() for each in axes.texts) == ["12.0", "31.0", "32.0*"]
    assert axes.get_title() == "d"
    axes, _ = draw_settings_grid(results_of(tmp_path / "t.jsonl", "test"), x="loss.k", y="loss.margin").axes
    assert axes.get_title() == "d\n(epoch selected on the test set, as in the paper)"
    for wrong, message in (
        ({"x": "loss.kk", "y": "loss.margin"}, r"does not sweep 'loss\.kk': set x to loss\.k, which it sweeps"),
        ({"x": "loss.k", "y": "loss.margn"}, "no method of s sets 'loss.margn' to a number"),
        ({"x": "loss.k", "y": "loss.margin", "metric": "recall@2"}, "did you mean 'recall@1'"),
    ):
        with pytest.raises(NearfarError, match=message):
            draw_settings_grid(path, **wrong)


def test_plots_are_the_same_bytes_each_time(runs: Path, tmp_path: Path) -> None:
    for kind, suffix in (("map", "svg"), ("map", "png"), ("similarity", "svg"), ("decay", "svg")):
        files = [tmp_path / f"{kind}{i}.{suffix}" for i in range(2)]
        for file in files:
            write_plot(kind, [runs / "isa"], file)
        assert files[0].read_bytes() == files[1].read_bytes()
        if suffix == "svg":
            ElementTree.parse(files[0])
        else:
            assert files[0].read_bytes().startswith(b"\x89PNG")


def test_the_command(runs: Path, tmp_path: Path) -> None:
    def run(*args: str) -> Any:
        return CliRunner().invoke(main, ["bench", "plot", *args])

    out = str(tmp_path / "x.svg")
    done = run("overfitting", str(runs / "mpa"), str(runs / "isa"), "--metric", "map@r", "--out", out)
    assert done.exit_code == 0, done.output
    assert "isa, validation" in Path(out).read_text()
    done = run("compactness", str(runs / "isa"), str(runs / "ms"), "--out", out)
    assert done.exit_code == 0, done.output
    assert "isa, proxies" in Path(out).read_text()
    for kind in ("map", "similarity"):
        done = run(kind, str(runs / "mpa"), str(runs / "isa"), "--classes", "2", "--split", "test", "--out", out)
        assert done.exit_code == 0, done.output
        assert "proxy-isa" in Path(out).read_text()
    results = str(results_of(tmp_path / "r.jsonl"))
    assert run("settings", results, "--x", "loss.k", "--y", "loss.margin", "--out", out).exit_code == 0
    for args, message in (
        (("settings", results, "--x", "loss.k", "--out", out), "plot settings needs y: pass --y"),
        (
            ("decay", str(runs / "isa"), "--split", "test", "--out", out),
            "plot decay has no option split. It takes none",
        ),
        (("decay", str(runs / "isa"), str(runs / "mpa"), "--out", out), "takes one source, got 2"),
        (("compactness", str(runs / "isa"), "--classes", "3", "--out", out), "plot compactness has no option classes"),
        (("map", str(tmp_path), "--out", out), "not a run directory"),
        (("decay", str(runs / "isa"), "--out", str(tmp_path / "x.pdf")), "plots are saved as .svg or .png"),
    ):
        failed = run(*args)
        assert failed.exit_code == 1
        assert message in failed.output
    with pytest.raises(NearfarError, match="did you mean 'map'"):
        write_plot("mapp", [runs / "isa"], Path(out))


def test_a_run_without_its_checkpoint_is_an_error(runs: Path, tmp_path: Path) -> None:
    for file in ("config.yaml", "model.safetensors"):
        (tmp_path / file).write_bytes((runs / "isa" / file).read_bytes())
    with pytest.raises(NearfarError, match=CHECKPOINT.name):
        draw_embedding_space([tmp_path])
