"""`nearfar calibrate` and `nearfar classify` on a small run, and where the calibration is shown."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import nearfar as package
from command_line import done, failed
from nearfar.calibration import load_calibration
from nearfar.data import Manifest, open_data, save_manifest
from nearfar.search import Encoder
from nearfar.search.classification import classify
from nearfar.search.run_index import open_index
from nearfar.training import Run, train
from training_cases import configured, saved_vectors


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Save 14 classes of 20 vectors each, which hardly overlap."""
    return saved_vectors(tmp_path_factory.mktemp("data") / "vectors.npz", classes=14, per_class=20, noise=0.3)


@pytest.fixture(scope="module")
def vector_run(vectors: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = configured("features", vectors, "proxy-anchor")
    return train(config, tmp_path_factory.mktemp("runs") / "vectors", say=lambda _: None)


@pytest.fixture(scope="module")
def calibrated(vector_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibrated") / "run"
    shutil.copytree(vector_run.path, path)
    printed = done("calibrate", path)
    assert "calibration error" in printed
    assert "unknown classes, AUROC" in printed
    return path


@pytest.fixture
def run(calibrated: Path, tmp_path: Path) -> Path:
    shutil.copytree(calibrated, tmp_path / "run")
    return tmp_path / "run"


def test_calibrate_uses_the_test_classes_and_writes_the_report(run: Path, vector_run: Run) -> None:
    tree = json.loads(done("calibrate", run, "--fmr", "0.2", "--json"))
    test = vector_run.manifest().subset("test")
    assert (tree["split"], tree["samples"], tree["trained"]) == ("test", len(test), 0)
    assert [point["fmr"] for point in tree["verification"]["points"]] == [0.2, 0.1, 0.01]
    report = (run / "report.html").read_text()
    assert "<h2>Decisions</h2>" in report
    assert "Reliability of" in report


def test_trained_classes_are_counted(run: Path) -> None:
    printed = done("calibrate", run, "--split", "train")
    assert "The model was trained on 7 of the 7 classes" in printed


def test_search_shows_the_probability(run: Path, vectors: str) -> None:
    done("index", run, vectors)
    table = done("search", run, 30, "-k", 3).splitlines()
    assert table[1].split() == ["rank", "distance", "same", "label", "id", "name"]
    (found,) = json.loads(done("search", run, 30, "-k", 3, "--json"))
    calibration = load_calibration(Run(run))
    assert calibration is not None
    for hit in found["results"]:
        assert hit["same"] == pytest.approx(float(calibration.probability(hit["distance"])))
    (limited,) = json.loads(done("search", run, 30, "--label", "kind 01", "--json"))
    assert {hit["same"] for hit in limited["results"]} == {None}
    done("search", run, 30, "-k", 3, "--html", run / "found.html")
    assert "same: " in (run / "found.html").read_text()


def test_classify_knows_the_classes_of_the_index_only(run: Path, vectors: str, tmp_path: Path) -> None:
    whole = open_data(vectors)
    assert whole.features is not None
    kept = whole.subset(np.flatnonzero(whole.labels != 11)).compact()
    save_manifest(kept, tmp_path / "some.npz")
    done("index", run, tmp_path / "some.npz")
    queries = np.concatenate([whole.features[whole.labels == label][:5] for label in (9, 11)])
    np.save(tmp_path / "queries.npy", queries)
    before = json.loads(done("classify", run, tmp_path / "queries.npy", "--json"))
    known = [item["label"] for item in before[:5]]
    assert known.count(whole.classes[9]) >= 4
    assert whole.classes[11] not in [item["label"] for item in before]
    # a few labeled samples of the class make it known; nothing is trained
    rows = np.flatnonzero(whole.labels == 11)[5:12]
    added = Manifest(
        labels=np.zeros(len(rows), np.int64),
        classes=(whole.classes[11],),
        split=["test"] * len(rows),
        features=whole.features[rows],
    )
    save_manifest(added, tmp_path / "added.npz")
    done("index", run, tmp_path / "added.npz", "--add")
    after = json.loads(done("classify", run, tmp_path / "queries.npy", "--json"))
    assert [item["label"] for item in after[5:]].count(whole.classes[11]) >= 4
    done("classify", run, tmp_path / "queries.npy", "--csv", tmp_path / "out.csv")
    with open(tmp_path / "out.csv", newline="") as file:
        rows_read = list(csv.DictReader(file))
    assert [row["class"] for row in rows_read] == [item["label"] or "unknown" for item in after]
    assert rows_read[0]["score_1"] == f"{after[0]['candidates'][0]['score']:.4f}"


def test_a_sample_of_the_index_does_not_vote_for_itself(run: Path, vectors: str) -> None:
    done("index", run, vectors)
    encoder = Encoder(Run(run))
    index = open_index(encoder)
    assert encoder.calibration is not None
    vector = index.vector_of(5)[None]
    with_self = classify(index, vector, encoder.calibration)[0]
    without = classify(index, vector, encoder.calibration, ids=np.array([5]))[0]
    assert with_self.candidates[0].score > without.candidates[0].score
    distances, found = index.search(vector, 11)
    expected: dict[str, float] = {}
    for distance, id in zip(distances[0].tolist(), found[0].tolist(), strict=True):
        if id != 5:
            label = index.label_of(int(index.rows_of([id])[0]))
            assert label is not None
            expected[label] = expected.get(label, 0.0) + float(encoder.calibration.probability(distance)) / 10
    assert without.candidates[0].score == pytest.approx(max(expected.values()))


def test_an_unrelated_vector_is_unknown(run: Path, vectors: str) -> None:
    done("index", run, vectors)
    encoder = Encoder(Run(run))
    index = open_index(encoder)
    assert encoder.calibration is not None
    lonely = np.linalg.svd(index.vectors)[2][-1:]  # the direction in which the samples differ least
    (result,) = classify(index, lonely, encoder.calibration)
    assert result.label is None
    assert len(result.candidates) >= 1


def test_the_saved_model_and_its_card_have_the_calibration(run: Path, tmp_path: Path) -> None:
    folder = Run(run).save_pretrained(tmp_path / "saved")
    card = (folder / "README.md").read_text()
    assert "## Decisions" in card
    assert "| FMR | threshold |" in card
    encoder = package.load(folder)
    assert encoder.calibration == load_calibration(Run(run))


def test_errors_are_one_line(run: Path, vector_run: Run, tmp_path: Path) -> None:
    assert "is not calibrated" in failed("classify", vector_run.path, 3)
    (tmp_path / "empty").mkdir()
    assert "there are no images" in failed("classify", run, tmp_path / "empty")
    other = json.loads((run / "calibration.json").read_text()) | {"model": "0" * 64}
    (run / "calibration.json").write_text(json.dumps(other))
    assert "was measured with weights other" in failed("search", run, 3)
