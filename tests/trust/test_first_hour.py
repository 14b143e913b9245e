"""What somebody meets in the first hour with photos: corrupt files, failed starts, burst shots, corrected labels."""

from __future__ import annotations

import csv
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from nearfar.audit.decisions import apply_decisions
from nearfar.cli import main
from nearfar.data import Manifest, open_data
from nearfar.data.near_duplicates import find_near_duplicates, hash_image
from nearfar.data.verification import verify_images
from nearfar.losses import create
from nearfar.metrics import evaluate
from nearfar.runs import Run
from nearfar.training.log import read_log

SMALL = [
    "model.backbone=small",
    "model.pretrained=false",
    "images.crop=16",
    "model.dim=8",
    "batches.size=8",
    "threads=1",
]
SHORT = [word for each in (*SMALL, "steps=2", "data.workers=0") for word in ("--set", each)]


def invoke(*words: object) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def save_photos(root: Path, *, classes: int = 4, count: int = 4, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    for label in range(classes):
        (root / f"class-{label}").mkdir(parents=True)
        for number in range(count):
            grid = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
            grid.resize((48, 48), Image.Resampling.BICUBIC).save(root / f"class-{label}" / f"{number}.jpg")
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return save_photos(tmp_path / "photos")


def test_broken_images_are_listed_before_the_work_with_the_way_to_skip_them(tmp_path: Path) -> None:
    photos, run = save_photos(tmp_path / "photos", classes=8), tmp_path / "run"
    assert invoke("train", photos, "--out", run, *SHORT).exit_code == 0
    (photos / "class-3" / "2.jpg").write_bytes((photos / "class-3" / "2.jpg").read_bytes()[:300])
    (photos / "class-0" / "1.jpg").write_bytes(b"")
    for words in (
        ["train", photos, "--out", tmp_path / "other", *SHORT],
        ["eval", run, photos, "--split", "all"],
        ["index", run, photos],
        ["audit", photos, "--model", run, "--out", tmp_path / "audit"],
        ["advise", photos, "--out", tmp_path / "advise"],
    ):
        result = invoke(*words)
        assert result.exit_code == 1, (words, result.output)
        (line,) = result.stderr.splitlines()
        assert "images cannot be read" in line
        assert "class-0/1.jpg is empty" in line
        assert "--skip-broken" in line
        if words[0] != "advise":
            skipping = invoke(*words, "--skip-broken")
            assert skipping.exit_code == 0, (words, skipping.output)
            assert "skipped 2 of 32 images" in skipping.output
    assert Run(tmp_path / "other").config.data.on_error == "skip"
    last = list(csv.DictReader((tmp_path / "audit" / "audit.csv").open()))[-1]
    with (tmp_path / "decisions.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(last))
        writer.writeheader()
        writer.writerow(last | {"decision": "remove"})
    words = ["audit", photos, "--apply", tmp_path / "decisions.csv", "--out", tmp_path / "corrected.csv"]
    applied = invoke(*words, "--skip-broken")
    assert applied.exit_code == 0, applied.output
    assert len(open_data(tmp_path / "corrected.csv")) == 32 - 2 - 1


def test_images_are_checked_once(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (photos / "class-0" / "1.jpg").write_bytes(b"")
    said = list[str]()
    first = verify_images(open_data(photos), say=said.append)
    moved = photos.rename(photos.with_name("moved"))
    again = verify_images(open_data(moved), say=said.append)
    assert len(said) == 1
    assert list(first.broken) == list(again.broken) == [1]
    assert again.broken[1].startswith(str(moved / "class-0" / "1.jpg"))
    assert (first.hashes == again.hashes).all()
    Image.new("RGB", (40, 40)).save(moved / "class-0" / "1.jpg")
    assert verify_images(open_data(moved), say=said.append).broken == {}
    assert len(said) == 2
    monkeypatch.setenv("NEARFAR_CACHE", "/proc/not/writable")
    assert verify_images(open_data(moved), say=said.append).broken == {}


def test_a_start_that_failed_can_be_started_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("not today")

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("nearfar.training.trainer.train_step", fail)
        assert "not today" in invoke("train", photos, "--out", out, *SHORT).stderr
    assert (out / "config.yaml").is_file()
    assert "without --resume" in invoke("train", "--resume", "--out", out, "--set", "seed=3").stderr
    again = invoke("train", photos, "--out", out, *SHORT, "--set", "seed=3")
    assert again.exit_code == 0, again.output
    assert Run(out).config.seed == 3
    assert "already contains a run" in invoke("train", photos, "--out", out, *SHORT).stderr


def test_an_empty_class_folder_is_mentioned(photos: Path) -> None:
    (photos / "empty").mkdir()
    (photos / "class-0" / "deeper" / "deepest").mkdir(parents=True)
    printed = invoke("data", photos).output
    assert "2 folders without images, the first: class-0/deeper" in printed


def test_a_wrong_folder_level_is_mentioned(tmp_path: Path) -> None:
    save_photos(tmp_path / "all" / "tame")
    save_photos(tmp_path / "all" / "wild", seed=1)
    note = "class 'tame' has 4 subfolders with images: if these are the classes, open the folder 'tame'"
    assert note in invoke("data", tmp_path / "all").output
    assert note in invoke("train", tmp_path / "all", "--out", tmp_path / "run", *SHORT).output.partition("steps")[0]
    assert "subfolders" not in invoke("data", tmp_path / "all" / "tame").output


def test_near_duplicates_are_found(photos: Path, tmp_path: Path) -> None:
    image = Image.open(photos / "class-3" / "0.jpg")
    shifted = Image.new("RGB", image.size)
    shifted.paste(image, (1, 0))
    assert (hash_image(image) ^ hash_image(image.resize((200, 200)))).bit_count() <= 4
    for number in range(3):
        image.rotate(0).resize((60 + number, 60 + number)).save(photos / "class-3" / f"burst-{number}.jpg", quality=80)
    image.save(photos / "class-0" / "copy.jpg", quality=60)
    found = invoke("data", photos, "--scan").output
    assert (
        "4 of 11 test images (36%) are near-duplicates of another image (4 of a training image, 4 of another" in found
    )
    trained = invoke("train", photos, "--out", tmp_path / "run", *SHORT)
    assert "note: 4 of 11 test images (36%) are near-duplicates" in trained.output


def test_near_duplicates_agree_with_a_comparison_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 2**63, 60, dtype=np.uint64)
    flips = np.array(
        [sum(1 << int(b) for b in rng.choice(64, rng.integers(0, 8), replace=False)) for _ in range(60)], np.uint64
    )
    hashes = np.concatenate([base, base ^ flips])
    pairs = [(i, j) for i in range(120) for j in range(i + 1, 120) if int(hashes[i] ^ hashes[j]).bit_count() <= 4]
    assert find_near_duplicates(hashes) == pairs
    assert len(pairs) > 10


def test_corrected_labels_have_one_split_per_class(tmp_path: Path) -> None:
    m = Manifest(
        labels=[0, 0, 1, 1, 2, 2],
        classes=("a", "b", "c"),
        split=["train", "train", "train", "train", "test", "test"],
        paths=tuple("uvwxyz"),
    )
    rows = [(0, "u", "a", "c"), (4, "y", "c", "a"), (2, "w", "b", "new"), (5, "z", "c", "new"), (3, "x", "b", "new")]
    table = tmp_path / "decisions.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("row", "path", "label", "suggested", "decision"))
        writer.writerows((*row, "relabel") for row in rows)
    corrected = apply_decisions(m, table, new_classes=True)
    assert [corrected.classes[label] for label in corrected.labels] == ["c", "a", "new", "new", "a", "new"]
    assert corrected.split.tolist() == ["test", "train", "train", "train", "train", "train"]
    assert corrected.notes[-1] == "3 samples moved to the split of the new class"


def test_training_warns_about_classes_on_both_sides(tmp_path: Path) -> None:
    features = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
    split = np.array(["train", "test"] * 12)
    np.savez(tmp_path / "data.npz", features=features, labels=np.repeat(np.arange(4), 6), split=split)
    words = [word for each in ("steps=2", "model.dim=4", "batches.size=8") for word in ("--set", each)]
    result = invoke("train", tmp_path / "data.npz", "--out", tmp_path / "run", *words)
    assert result.exit_code == 0, result.output
    assert "warning: 4 of 4 test classes are also in the training split" in result.output


def test_short_runs_have_curves_and_models_can_be_read_by_others(vectors: str, tmp_path: Path) -> None:
    words = [word for each in ("steps=30", "model.dim=8", "batches.size=24") for word in ("--set", each)]
    before = os.umask(0o022)
    try:
        assert invoke("train", vectors, "--out", tmp_path / "run", *words).exit_code == 0
    finally:
        os.umask(before)
    steps = [entry for entry in read_log(tmp_path / "run" / "log.jsonl") if entry["kind"] == "step"]
    assert len(steps) >= 10
    for name in ("model.safetensors", "checkpoint/state.safetensors", "config.yaml", "log.jsonl"):
        assert stat.S_IMODE((tmp_path / "run" / name).stat().st_mode) == 0o644, name


def test_a_wrong_metric_is_refused_first_with_the_same_cutoff(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word for each in ("steps=2", "model.dim=8", "batches.size=24") for word in ("--set", each)]
    assert invoke("train", vectors, "--out", tmp_path / "run", *words).exit_code == 0
    monkeypatch.setattr(Run, "embedder", None)  # not reached
    line = invoke("eval", tmp_path / "run", "--metrics", "recal@1").stderr
    assert "did you mean 'recall@1'?" in line


@pytest.mark.parametrize("minutes", ["nan", "inf", "0", "-1"])
def test_advise_refuses_times_that_never_end(minutes: str, vectors: str) -> None:
    assert "--minutes must be a number above 0" in invoke("advise", vectors, "--minutes", minutes).stderr


def test_a_huge_number_of_neighbors_finds_all_samples(vectors: str, tmp_path: Path) -> None:
    words = [word for each in ("steps=2", "model.dim=8", "batches.size=24") for word in ("--set", each)]
    assert invoke("train", vectors, "--out", tmp_path / "run", *words).exit_code == 0
    found = invoke("search", tmp_path / "run", "0", "-k", "1000000000")
    assert found.exit_code == 0, found.output
    assert len(found.stdout.splitlines()) == 2 + 239


@pytest.mark.parametrize("name", ["pipe", "pipe.csv", "pipe.tar", "pipe.zip", "pipe.npz", "pipe.npy"])
def test_a_pipe_as_data_is_called_a_pipe(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    line = invoke("data", tmp_path / name).stderr
    assert line == f"Error: {tmp_path / name}: is a pipe or a device: save its content to a file first\n"


def test_decisions_and_queries_in_pipes_do_not_hang(vectors: str, tmp_path: Path) -> None:
    words = [word for each in ("steps=2", "model.dim=8", "batches.size=24") for word in ("--set", each)]
    assert invoke("train", vectors, "--out", tmp_path / "run", *words).exit_code == 0
    for name in ("pipe.csv", "pipe.npy"):
        os.mkfifo(tmp_path / name)
    line = invoke("audit", vectors, "--apply", tmp_path / "pipe.csv", "--out", tmp_path / "corrected.npz").stderr
    assert "pipe.csv: is a pipe, not a file" in line
    line = invoke("search", tmp_path / "run", tmp_path / "pipe.npy").stderr
    assert "pipe.npy is a pipe, a device or a folder, not a file" in line
    assert "is a folder: a query is one image" in invoke("search", tmp_path / "run", tmp_path).stderr


def test_scan_names_the_way_to_skip_broken_images(photos: Path) -> None:
    assert "--skip-broken" not in invoke("data", photos, "--scan").stdout
    (photos / "class-1" / "0.jpg").write_bytes(b"")
    assert "replace the broken files, or leave them out with --skip-broken" in invoke("data", photos, "--scan").stdout


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int16])
@pytest.mark.parametrize("name", ["proxy-anchor", "proxy-nca", "triplet", "supcon", "margin"])
def test_labels_of_every_integer_type(name: str, dtype: torch.dtype) -> None:
    sizes = {"classes": 3, "dim": 4} if name.startswith("proxy") else {}
    torch.manual_seed(0)
    loss, x, labels = create(name, **sizes), torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])
    assert torch.equal(loss(x, labels.to(dtype)), loss(x, labels))


def test_vectors_too_short_for_a_direction_are_refused() -> None:
    x = torch.eye(4).repeat(2, 1)
    labels = [0, 1, 2, 3] * 2
    assert evaluate(x * 1e-20, labels)["recall@1"] == evaluate(x, labels)["recall@1"] == 1.0
    with pytest.raises(ValueError, match="too short to compute its direction"):
        evaluate((x * 1e-40).float(), labels)
    x[0] = 0  # a zero vector has no direction either, but says so
    evaluate(x, labels)


def test_the_plan_names_the_memory(vectors: str, tmp_path: Path) -> None:
    words = [word for each in ("steps=2", "model.dim=8", "batches.size=24") for word in ("--set", each)]
    printed = invoke("train", vectors, "--out", tmp_path / "run", *words).output
    assert "a step needs about 1 MB of memory" in printed


def test_the_memory_of_a_step_is_estimated(drawings: str, tmp_path: Path) -> None:
    """The activations of a convolutional network grow with the batch, and a micro batch limits them."""
    from nearfar.training.memory import estimate_memory
    from nearfar.training.trainer import Trainer
    from training_cases import configured

    def estimate(*settings: str) -> int:
        config = configured("pixels", drawings, "triplet", *settings)
        trainer = Trainer(config, open_data(drawings), tmp_path, say=lambda _: None)
        found = estimate_memory(trainer.state, trainer.train_loader)
        assert found is not None
        return found

    small, large = estimate("batches.size=8"), estimate("batches.size=16")
    pairs = 12 * 4 * (16**2 - 8**2)
    assert large > small + pairs
    assert estimate("batches.size=16", "micro_batch=8") == small + pairs


def test_raw_features_are_the_scores_to_beat(vectors: str, tmp_path: Path) -> None:
    words = [word for each in ("steps=2", "model.dim=8", "batches.size=24") for word in ("--set", each)]
    printed = invoke("train", vectors, "--out", tmp_path / "run", *words).output
    assert "raw features: " in printed
    assert "before training (PCA head): " in printed
    result = Run(tmp_path / "run").results()
    test = open_data(vectors).subset("test")
    expected = evaluate(np.asarray(test.features), test.labels, metrics=tuple(result["raw"]))
    assert result["raw"] == pytest.approx(dict(expected))
    page = (tmp_path / "run" / "report.html").read_text()
    assert "raw features" in page
    resumed = invoke("train", vectors, "--out", tmp_path / "random", *words, "--set", "model.init=random")
    assert "before training (random head): " in resumed.output


def test_embedding_tells_its_progress_without_a_terminal(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word for each in ("steps=2", "model.dim=8", "batches.size=24") for word in ("--set", each)]
    assert invoke("train", vectors, "--out", tmp_path / "run", *words).exit_code == 0
    monkeypatch.setattr("nearfar.training.evaluate.MESSAGE_INTERVAL", -1)
    result = invoke("audit", tmp_path / "run", "--out", tmp_path / "audit")
    assert "embed: 240 of 240 samples" in result.stderr
