"""A loss that fails leaves its batch in the run, and the batch gives the same failure again."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from nearfar.data import Batch, Manifest, open_data, save_manifest
from nearfar.errors import NearfarError
from nearfar.training import Run, train
from nearfar.training.components import make_embedder
from nearfar.training.failed_batch import FILE_NAME, LossError, load_failed_batch, main, recompute_loss
from nearfar.training.watchdog import Watchdog
from training_cases import configured

HIERARCHY = ["data.split=all", "optimizer.lr=1e30", "loss.name=hap", "test=false", "untrained=false"]
IMAGES = "data.split=all optimizer.lr=1e30 model.backbone=small model.pretrained=false images.crop=16 data.workers=0 "
IMAGES += "batches.name=pairs batches.size=8"


def failed(out: Path, source: str, recipe: str, *settings: str) -> str:
    with pytest.raises(NearfarError) as error:
        train(configured("features", source, recipe, "steps=40", *settings), out, say=lambda _: None)
    return str(error.value)


def test_the_kept_batch_raises_what_training_raised(vectors: str, tmp_path: Path) -> None:
    message = failed(tmp_path, vectors, "lifted", "optimizer.lr=1e30")
    assert FILE_NAME in message
    with pytest.raises(ValueError, match="embeddings") as error:
        recompute_loss(tmp_path)
    assert str(error.value) in message
    assert load_failed_batch(tmp_path)["step"] == int(message.split("at step ")[1].partition(":")[0])


def test_the_kept_batch_of_a_hierarchy(vectors: str, tmp_path: Path) -> None:
    file = tmp_path / "taxonomy.csv"
    file.write_text("label,parent\n" + "".join(f"kind {i:02d},group {i // 3}\n" for i in range(12)))
    message = failed(tmp_path / "run", vectors, "hap", "optimizer.lr=1e30", f"data.taxonomy={file}")
    with pytest.raises(ValueError, match="embeddings") as error:
        recompute_loss(tmp_path / "run")
    assert str(error.value) in message


@pytest.fixture(scope="module")
def overflowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run on vectors of length 1e15, whose squares times the weight of the regularizer are beyond float32."""
    folder = tmp_path_factory.mktemp("overflow")
    labels = np.repeat(np.arange(8), 6)
    features = (1e15 * np.random.default_rng(0).normal(size=(48, 10))).astype(np.float32)
    data = Manifest(labels=labels, classes=tuple("abcdefgh"), split=["train"] * 48, features=features)
    save_manifest(data.split_by_class_order(), folder / "long.npz")
    settings = ["model.init=random", "loss.all_pairs=true", "loss.l2_reg=1e10"]
    return folder / "run", failed(folder / "run", str(folder / "long.npz"), "n-pair", *settings)


def test_the_kept_batch_gives_the_same_value(overflowed: tuple[Path, str]) -> None:
    out, message = overflowed
    assert load_failed_batch(out)["embeddings"].isfinite().all()
    assert math.isinf(float(recompute_loss(out)))
    assert message.startswith("at step 0: the loss is inf")
    assert not (out / "checkpoint").exists()  # it stopped before the weights changed


def test_network_and_inputs_give_the_rows(overflowed: tuple[Path, str]) -> None:
    run, batch = Run(overflowed[0]), load_failed_batch(overflowed[0])
    network = make_embedder(run.config, run.manifest())
    network.load_state_dict(batch["embedder"])
    torch.testing.assert_close(network(batch["x"]), batch["embeddings"], rtol=1e-5, atol=0)  # threads may differ
    labels = torch.from_numpy(run.manifest().subset("train").labels.copy())
    assert torch.equal(labels[batch["indices"]], batch["labels"])


def test_it_tells_what_it_has(overflowed: tuple[Path, str]) -> None:
    done = CliRunner().invoke(main, [str(overflowed[0])])
    assert done.exit_code == 0, done.output
    assert "the loss is inf" in done.output
    assert "norms from" in done.output


def test_ancestors_of_the_classes_are_saved(vectors: str, tmp_path: Path) -> None:
    classes = open_data(vectors).classes
    taxonomy = tmp_path / "taxonomy.csv"
    rows = ["label,family", *(f"{name},family {number // 2}" for number, name in enumerate(classes))]
    taxonomy.write_text("\n".join(rows) + "\n")
    out = tmp_path / "run"
    failed(out, vectors, "supcon", f"data.taxonomy={taxonomy}", *HIERARCHY)
    assert len(load_failed_batch(out)["levels"]) == len(classes)
    with pytest.raises(ValueError, match="embeddings"):
        recompute_loss(out)


@pytest.mark.parametrize("grade", [1, 0.75])
def test_relations_of_pairs_are_saved(grade: float, tmp_path: Path) -> None:
    table, rows = tmp_path / "pairs.csv", ["a,b,relation"]
    for thing in range(8):
        for number in range(2):
            Image.new("RGB", (20, 20), (30 * thing, 10 * number, 99)).save(tmp_path / f"{thing}-{number}.png")
        rows.append(f"{thing}-0.png,{thing}-1.png,{grade}")
    table.write_text("\n".join(rows) + "\n")
    with pytest.raises(NearfarError, match=FILE_NAME):
        train(configured("files", str(table), "supcon", *IMAGES.split()), tmp_path / "run", say=lambda _: None)
    batch = load_failed_batch(tmp_path / "run")
    assert batch["graded"] == (grade != 1)
    assert batch["relation"].shape == (len(batch["embeddings"]),) * 2
    with pytest.raises(ValueError, match="embeddings"):
        recompute_loss(tmp_path / "run")


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_only_finite_values_pass(value: float) -> None:
    x = torch.eye(2)
    watchdog = Watchdog(torch.device("cpu"), torch.optim.SGD([x]))
    batch = LossError("", 7, Batch(x, torch.arange(2), torch.arange(2)), x, None, torch.get_rng_state())
    watchdog.watch(torch.tensor(3e38), x, batch)
    with pytest.raises(LossError, match="the loss is") as error:
        watchdog.watch(torch.tensor(value), x, batch)
    assert error.value.inputs["step"] == 7
