"""Exports are read back by their consumers: onnxruntime, load_embedder, pyarrow, Qdrant, a parser of COPY."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from nearfar.cli import main
from nearfar.errors import NearfarError
from nearfar.ops.geometry import unit
from nearfar.search import Encoder, Index, export_model
from nearfar.search.export_vectors import export_vectors
from nearfar.training import Run


def snippet(page: Path) -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return str(code)


def run_snippet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the Python code of an export's README in its folder."""
    monkeypatch.chdir(folder)
    namespace: dict[str, Any] = {}
    exec(snippet(folder / "README.md"), namespace)
    return namespace


@pytest.mark.parametrize("kind", ["vector_run", "drawing_run", "image_run"])
def test_onnx_matches_torch_for_any_batch(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason="an extra: pip install -e '.[onnx]'")
    runtime = pytest.importorskip("onnxruntime", reason="an extra: pip install -e '.[onnx]'")
    run: Run = request.getfixturevalue(kind)
    result = CliRunner().invoke(main, ["export", str(run.path), "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert float(result.output.split("difference from torch is ")[1]) < 1e-4
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    manifest = run.manifest().subset("train")
    if kind == "vector_run":
        assert manifest.features is not None
        batch = manifest.features[:11].astype(np.float32)
    elif kind == "drawing_run":
        assert manifest.pixels is not None
        batch = manifest.pixels[:11, None]
    else:
        batch = np.random.default_rng(0).integers(0, 256, (11, 3, 32, 32), dtype=np.uint8)
    (found,) = session.run(None, {"input": batch})
    if kind == "image_run":
        wanted = Encoder(run).embed_batch(torch.from_numpy(batch))
    else:
        wanted = run.embed(manifest.subset(np.arange(11))).numpy()
    np.testing.assert_allclose(found, unit(torch.from_numpy(wanted)).numpy(), atol=1e-4)
    about = json.loads(session.get_modelmeta().custom_metadata_map["nearfar"])
    assert about["model_sha256"] == Encoder(run).model
    assert run_snippet(tmp_path, monkeypatch)["embedding"].shape == (2, 8)


def test_onnx_file_that_differs_is_not_written(
    vector_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="an extra: pip install -e '.[onnx]'")
    pytest.importorskip("onnxscript", reason="an extra: pip install -e '.[onnx]'")
    # real networks agree to 1e-6: ask for more than that
    monkeypatch.setattr(export_model, "TOLERANCE", -1.0)
    with pytest.raises(NearfarError, match=r"was not written: its embeddings differ from those of torch by"):
        export_model.export_onnx(Encoder(vector_run), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_missing_extra_names_the_install_command(vector_run: Run, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "onnxscript", None)
        patch.setitem(sys.modules, "onnx", None)
        result = CliRunner().invoke(main, ["export", str(vector_run.path), "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "pip install -e '.[onnx]'" in result.output


def test_safetensors_with_a_model_card(drawing_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(
        main, ["export", str(drawing_run.path), "--format", "safetensors", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    found = run_snippet(tmp_path, monkeypatch)
    assert torch.equal(found["embedder"].head.linear.weight, drawing_run.embedder().head.linear.weight)
    card = (tmp_path / "README.md").read_text()
    assert "--truncate" not in card
    assert "Khosla et al., Supervised Contrastive Learning" in card
    recall = 100 * drawing_run.results()["test"]["recall@1"]
    assert f"| Recall@1 | {recall:.1f} |" in card
    for heading in ("Use", "Training", "Scores", "Intended use", "Limits", "Citation"):
        assert f"\n## {heading}\n" in card
    assert "drawings.npz" in card


NASTY = ["plain", "tab\there", "line\nbreak\r", "back\\slash \\N", "ümlaut 鳥", 'quote"', "bytes \udcff", ""]


def nasty_index(labeled: bool = True) -> Index:
    vectors = np.random.default_rng(0).normal(size=(8, 5))
    labels = {"labels": np.arange(8), "classes": [f"{word}!" for word in NASTY]} if labeled else {}
    index = Index.from_vectors(vectors, names=NASTY, ids=np.arange(8) * 10, **labels)  # type: ignore[arg-type]
    index.remove([0])
    return index


def readable(word: str) -> str:
    return word.replace("\udcff", "?")


def copied(line: str) -> list[str | None]:
    """Parse a line of COPY's text format as PostgreSQL does."""
    meaning = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}
    cells = line.split("\t")
    return [None if cell == r"\N" else re.sub(r"\\(.)", lambda m: meaning[m.group(1)], cell) for cell in cells]


@pytest.mark.parametrize("labeled", [True, False])
def test_vectors_round_trip_through_every_file(labeled: bool, tmp_path: Path) -> None:
    index = nasty_index(labeled)
    export_vectors(index, tmp_path)
    assert np.array_equal(np.load(tmp_path / "vectors.npy"), index.vectors)
    names = [readable(word) for word in NASTY[1:]]
    labels = [f"{word}!" for word in names] if labeled else [None] * 7
    points = [json.loads(line) for line in (tmp_path / "qdrant.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [point["id"] for point in points] == index.ids.tolist()
    assert np.array_equal(np.array([point["vector"] for point in points], dtype=np.float32), index.vectors)
    assert [point["payload"] for point in points] == [
        {"label": label, "name": name} for label, name in zip(labels, names, strict=True)
    ]
    text = (tmp_path / "pgvector.tsv").read_bytes().decode("utf-8")
    rows = [copied(line) for line in text.removesuffix("\n").split("\n")]
    assert [row[0] for row in rows] == [str(number) for number in index.ids.tolist()]
    assert [row[1] for row in rows] == labels
    assert [row[2] for row in rows] == names
    assert np.array_equal(np.array([json.loads(str(row[3])) for row in rows], dtype=np.float32), index.vectors)


def test_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install pyarrow")
    index = nasty_index()
    assert tmp_path / "samples.parquet" in export_vectors(index, tmp_path)
    table = parquet.read_table(tmp_path / "samples.parquet").to_pydict()
    assert table["id"] == index.ids.tolist()
    assert table["name"] == [readable(word) for word in NASTY[1:]]
    assert np.array_equal(np.array(table["vector"], dtype=np.float32), index.vectors)


def test_csv_without_pyarrow(vector_run: Run, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        patch.setitem(sys.modules, "pyarrow.parquet", None)
        result = CliRunner().invoke(
            main, ["export", str(vector_run.path), "--format", "vectors", "--out", str(tmp_path)]
        )
    assert result.exit_code == 0, result.output
    assert "pyarrow is not installed" in result.output
    rows = list(csv.DictReader((tmp_path / "samples.csv").open(newline="")))
    assert len(rows) == 240
    assert rows[25] == {"id": "25", "label": "kind 01", "name": "row 25"}


def test_qdrant_code_finds_the_same_as_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("qdrant_client", reason="pip install qdrant-client")
    vectors = np.random.default_rng(0).normal(size=(700, 6))
    index = Index.from_vectors(vectors, labels=np.arange(700) % 3, classes=("a", "b", "c"))
    export_vectors(index, tmp_path)
    client = run_snippet(tmp_path, monkeypatch)["client"]
    for query in vectors[:5]:
        points = client.query_points("samples", query=query.tolist(), limit=6).points
        distances, ids = index.search(query[None], 6)
        assert [point.id for point in points] == ids[0].tolist()
        np.testing.assert_allclose([1 - point.score for point in points], distances[0], atol=1e-5)
        assert points[0].payload["label"] == "abc"[points[0].id % 3]
