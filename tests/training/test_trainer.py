"""Short real runs: they learn, repeat, resume, and report errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

from compiling import needs_compiler
from nearfar.config.merge import resolve
from nearfar.data import open_data
from nearfar.errors import NearfarError
from nearfar.metrics import evaluate
from nearfar.training import Config, Run, train
from training_cases import configured


def weights(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.path / "model.safetensors")


def equal(one: Run, other: Run) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def quiet(config: Config, out: Path, **options: object) -> Run:
    return train(config, out, say=lambda _: None, **options)  # type: ignore[arg-type]


def test_a_run_learns_and_writes_its_files(vectors: str, tmp_path: Path) -> None:
    run = quiet(configured("features", vectors, "proxy-anchor", "steps=60", "model.init=random"), tmp_path / "run")
    names = {path.name for path in run.path.iterdir()}
    assert names == {"config.yaml", "model.safetensors", "checkpoint", "log.jsonl", "scores.json"}
    result = run.results()
    data = open_data(vectors).subset("test")
    untrained = evaluate(torch.from_numpy(data.features.copy()), data.labels)  # type: ignore[union-attr]
    assert result["test"]["recall@1"] > 0.5
    assert result["selected_by"] == "last"
    assert result["steps"] == 60
    assert abs(run.evaluate()["map@r"] - result["test"]["map@r"]) < 1e-6
    assert untrained["recall@1"] > 0
    entries = run.log()
    assert [e["step"] for e in entries if e["kind"] == "step"] == list(range(4, 61, 4))
    losses = [e["loss"] for e in entries if e["kind"] == "step"]
    assert losses[-1] < losses[0]


def test_a_run_prints_its_size_and_progress(vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.training.monitor.MESSAGE_INTERVAL", 0)
    said: list[str] = []
    config = configured("features", vectors, "proxy-anchor", "steps=null", "epochs=2")
    run = train(config, tmp_path / "run", say=said.append)
    steps = run.results()["steps"]
    assert f"{steps} steps of 24, 2 epochs: this is short, try --set epochs=" in said[0]
    assert said[1].startswith(f"step 1 of {steps}, ")
    said.clear()
    train(config, tmp_path / "silent", say=said.append, progress=False)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("loss.memory_epoch=2",), True),
        ((), False),  # the default on vectors starts the memory at once
        (("loss.memory_epoch=2", "loss.negative_penalty=none"), False),
        (("loss.memory_epoch=2", "epochs=3"), False),
    ],
)
def test_a_run_too_short_for_the_memory_of_proxy_isa_warns(
    settings: tuple[str, ...], says: bool, vectors: str, tmp_path: Path
) -> None:
    said: list[str] = []
    small = ("steps=null", "epochs=2", "batches.size=4", "model.dim=8")
    train(configured("features", vectors, "proxy-isa", *small, *settings), tmp_path / "run", say=said.append)
    assert ("2 epochs; until then, negatives have little weight, try --set loss.memory_epoch=0" in said[0]) == says


def test_the_saved_configuration_repeats_the_run(vectors: str, tmp_path: Path) -> None:
    one = quiet(configured("features", vectors, "mpa-ap"), tmp_path / "one")
    kept = yaml.safe_load((one.path / "config.yaml").read_text())
    again = resolve("features", file=kept)
    assert again == one.config
    assert equal(one, quiet(again, tmp_path / "two"))


def test_another_seed_gives_other_weights(drawings: str, tmp_path: Path) -> None:
    one = quiet(configured("pixels", drawings, "supcon"), tmp_path / "one")
    two = quiet(configured("pixels", drawings, "supcon", "seed=1"), tmp_path / "two")
    assert not equal(one, two)


RESUMED = {
    "proxies, momentum": ("proxy-isa", ["epochs=6", "steps=null", "loss.memory_epoch=1", "loss.filter_epoch=2"]),
    "mining draws": ("margin", ["optimizer.name=sgd", "optimizer.lr=0.05"]),
    "ema, clipping, warm-up": (
        "multi-similarity",
        ["ema=0.9", "optimizer.clip_value=1", "optimizer.clip_norm=1", "schedule.warm_up_epochs=1"],
    ),
    "validation": ("triplet", ["data.validation=0.4", "optimizer.name=rmsprop", "model.freeze_bn=true"]),
    "two passes": ("supcon", ["micro_batch=7"]),
    "bf16": ("supcon", ["autocast=bf16", "model.head=mlp"]),
    "noise": ("mpa-dw", ["data.noise.rate=0.2"]),
    "profs": ("m-profs-hncm", ["batches.classes=3", "batches.size=null", "batches.steps=3", "batches.fill=true"]),
    "self-paced": ("bspml", ["data.noise.rate=0.2"]),
    "prism": ("prism", ["data.noise.rate=0.2"]),
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_killed_run_resumes_to_the_same_weights(case: str, drawings: str, tmp_path: Path) -> None:
    """Killed in the middle of an epoch, after a checkpoint was (or was not) written there."""
    recipe, settings = RESUMED[case]
    config = configured("pixels", drawings, recipe, "save_every=0", *settings)
    whole = quiet(config, tmp_path / "whole")

    def told(run: Run) -> list[object]:
        return [{k: v for k, v in e.items() if k not in ("samples_per_second", "seconds")} for e in run.log()]

    for stop in (1, 5, 9):
        out = tmp_path / f"cut after {stop}"
        quiet(config, out, stop_after=stop)
        assert not (out / "scores.json").exists(), out
        cut = quiet(config, out, resume=True)
        assert equal(whole, cut), out
        assert told(whole) == told(cut), out
        a, b = ({k: v for k, v in run.results().items() if k != "seconds"} for run in (whole, cut))
        assert a == b, out


def test_a_run_killed_before_its_first_checkpoint_starts_again(drawings: str, tmp_path: Path) -> None:
    config = configured("pixels", drawings, "supcon", "save_every=1000")
    whole = quiet(config, tmp_path / "whole")
    quiet(config, tmp_path / "cut", stop_after=1)
    assert not (tmp_path / "cut" / "checkpoint").exists()
    assert equal(whole, quiet(config, tmp_path / "cut", resume=True))


def test_resume_with_other_settings_or_data_is_an_error(vectors: str, drawings: str, tmp_path: Path) -> None:
    config = configured("features", vectors, "supcon", "save_every=0")
    quiet(config, tmp_path / "run", stop_after=2)
    with pytest.raises(NearfarError, match=r"optimizer.lr is 0.5 now and was 0.001"):
        quiet(configured("features", vectors, "supcon", "optimizer.lr=0.5"), tmp_path / "run", resume=True)
    with pytest.raises(NearfarError, match="already contains a run"):
        quiet(config, tmp_path / "run")
    known = replace(config, data=replace(config.data, fingerprint="0" * 64))
    with pytest.raises(NearfarError, match="files, classes or split have changed"):
        quiet(known, tmp_path / "other")


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of ten colored image files."""
    folder = tmp_path_factory.mktemp("images")
    generator = torch.Generator().manual_seed(0)
    for c in range(4):
        (folder / f"class {c}").mkdir()
        base = torch.randint(0, 255, (3,), generator=generator)
        for i in range(10):
            noise = torch.randint(0, 40, (24, 30, 3), generator=generator)
            pixels = (base + noise).clamp(0, 255).to(torch.uint8).numpy()
            Image.fromarray(pixels).save(folder / f"class {c}" / f"{i}.png")
    return folder


FILES = ("model.backbone=small", "model.pretrained=false", "images.crop=16", "batches.size=8", "epochs=2")


def test_the_worker_count_does_not_change_the_weights(image_folder: Path, tmp_path: Path) -> None:
    runs = []
    for workers in (0, 2):
        settings = [f"data.source={image_folder}", "model.dim=8", "threads=1", f"data.workers={workers}", *FILES]
        runs.append(quiet(resolve("files", recipe="proxy-anchor", settings=settings), tmp_path / f"w{workers}"))
    assert equal(*runs)


def test_files_with_a_cache_and_unreadable_images(image_folder: Path, tmp_path: Path) -> None:
    (image_folder / "class 0" / "broken.png").write_bytes(b"not an image")
    try:
        base = [f"data.source={image_folder}", "model.dim=8", "threads=1", "data.workers=0", *FILES]
        with pytest.raises(NearfarError, match=r"broken\.png"):
            quiet(resolve("files", recipe="supcon", settings=base), tmp_path / "raise")
        said: list[str] = []
        config = resolve("files", recipe="supcon", settings=[*base, "data.on_error=skip"])
        run = train(config, tmp_path / "skip", say=said.append)
        assert any("broken.png" in line for line in said)
        assert any("1 of 41" in line for line in said)
        assert run.results()["test"]["recall@1"] > 0
        cache = [*base, "data.on_error=skip", f"data.cache={tmp_path / 'cache'}", "data.cache_size=18"]
        cached = quiet(resolve("files", recipe="supcon", settings=cache), tmp_path / "cached")
        assert cached.results()["test"]["recall@1"] > 0
        assert list((tmp_path / "cache").glob("*.npy"))
    finally:
        (image_folder / "class 0" / "broken.png").unlink()


def test_the_best_epoch_on_held_out_classes_is_kept(vectors: str, tmp_path: Path) -> None:
    config = configured(
        "features", vectors, "contrastive", "data.validation=0.34", "optimizer.lr=0.3", "epochs=8", "steps=null"
    )
    run = quiet(config, tmp_path / "run")
    looks = [e for e in run.log() if e["kind"] == "epoch"]
    values = [e["validation"]["map@r"] for e in looks]
    result = run.results()
    assert len(values) == 8
    assert result["selected_by"] == "validation"
    assert result["epoch"] == max(range(8), key=lambda i: (values[i], -i))
    assert abs(run.evaluate(split="val")["map@r"] - max(values)) < 1e-6
    train_classes = set(run.manifest().subset("train").labels) - set(run.manifest().subset("test").labels)
    assert len(train_classes) == 6


def test_patience_stops_training(vectors: str, tmp_path: Path) -> None:
    settings = ["data.validation=0.34", "optimizer.lr=10", "epochs=50", "steps=null", "select.patience=2"]
    run = quiet(configured("features", vectors, "contrastive", *settings), tmp_path / "run")
    looks = [e["validation"]["map@r"] for e in run.log() if e["kind"] == "epoch"]
    best = looks.index(max(looks))
    assert len(looks) == best + 3 < 50


def test_selection_on_the_test_set_gives_a_warning(vectors: str, tmp_path: Path) -> None:
    run = quiet(configured("features", vectors, "supcon", "select.by=test"), tmp_path / "run")
    assert "test scores are too optimistic" in run.results()["warning"]
    assert run.results()["selected_by"] == "test"
    with pytest.raises(NearfarError, match=r"set data\.validation"):
        quiet(configured("features", vectors, "supcon", "select.by=validation"), tmp_path / "other")


def test_all_classes_can_be_trained_on(vectors: str, tmp_path: Path) -> None:
    run = quiet(configured("features", vectors, "proxy-anchor", "data.split=all"), tmp_path / "run")
    assert "test" not in run.results()
    assert run.evaluate(split="all")["recall@1"] > 0.5


def test_noise_is_recorded_and_only_in_training_labels(vectors: str, tmp_path: Path) -> None:
    run = quiet(configured("features", vectors, "supcon", "data.noise.rate=0.2"), tmp_path / "run")
    record = json.loads((run.path / "noise.json").read_text())
    assert len(record["rows"]) == 24
    assert max(record["rows"]) < 120


def test_a_diverging_run_gives_advice(vectors: str, tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match=r"at step \d+.*optimizer.lr"):
        quiet(configured("features", vectors, "lifted", "optimizer.lr=1e30", "steps=40"), tmp_path / "run")


def test_anchors_without_positives_are_warned_about(vectors: str, tmp_path: Path) -> None:
    said: list[str] = []
    settings = ["batches.name=shuffled", "batches.size=2", "steps=4", "log_every=1"]
    train(configured("features", vectors, "supcon", *settings), tmp_path / "run", say=said.append)
    assert sum("no positive" in line for line in said) == 1


def test_frozen_trunk_in_warm_up_epochs(drawings: str, tmp_path: Path) -> None:
    start = quiet(configured("pixels", drawings, "supcon", "steps=1", "optimizer.lr=1e-12"), tmp_path / "start")
    warm = quiet(configured("pixels", drawings, "supcon", "schedule.warm_up_epochs=9"), tmp_path / "warm")
    frozen = quiet(configured("pixels", drawings, "supcon", "model.freeze_backbone=true"), tmp_path / "frozen")
    a, b, c = weights(start), weights(warm), weights(frozen)
    trunk = [name for name in a if name.startswith("backbone") and name.endswith("weight")]
    assert trunk
    assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in trunk)
    assert all(torch.equal(b[name], c[name]) for name in trunk)
    assert not torch.allclose(a["head.linear.weight"], b["head.linear.weight"], atol=1e-4)


def test_wrong_backbone_for_the_data(vectors: str, tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match=r"does not fit the data .*, which has features: "):
        quiet(configured("features", vectors, "supcon", "model.backbone=small"), tmp_path / "run")


@needs_compiler
def test_compiled_and_plain_learn_alike(vectors: str, tmp_path: Path) -> None:
    plain = quiet(configured("features", vectors, "supcon"), tmp_path / "plain")
    fast = quiet(configured("features", vectors, "supcon", "compile=true"), tmp_path / "compiled")
    for name, tensor in weights(plain).items():
        torch.testing.assert_close(weights(fast)[name], tensor, rtol=1e-3, atol=1e-4)


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match="not a run directory"):
        Run(tmp_path)
