"""`nearfar index` and `nearfar search` on small runs, and their errors."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from command_line import done, failed, nearfar
from nearfar.data import Manifest, open_data, save_manifest
from nearfar.search import Index
from nearfar.training import Run


@pytest.fixture
def run(vector_run: Run, tmp_path: Path) -> Path:
    """Return a copy of the run that a test can put an index into."""
    shutil.copytree(vector_run.path, tmp_path / "run")
    return tmp_path / "run"


def test_index_then_search_by_id(run: Path, vectors: str) -> None:
    printed = done("index", run, vectors)
    assert printed.startswith(f"{run / 'index'}: 240 vectors of 8 dimensions, 12 classes, exact")
    index = Index.load(run / "index")
    table = done("search", run, 30, "-k", 4).splitlines()
    assert table[0] == "query: id 30, kind 01, row 30"
    assert table[1].split() == ["rank", "distance", "label", "id", "name"]
    wanted = index.search(index.vector_of(30)[None], 5)
    assert [int(line.split()[4]) for line in table[2:]] == wanted[1][0, 1:].tolist()
    assert [int(line.split()[0]) for line in table[2:]] == [1, 2, 3, 4]
    assert 30 not in [int(line.split()[4]) for line in table[2:]]


def test_only_classes_with_samples_are_counted(run: Path, vectors: str, tmp_path: Path) -> None:
    data = open_data(vectors)
    save = {"features": data.features, "labels": data.labels, "classes": np.array(data.classes)}
    for name, rows in (("some", data.labels < 5), ("more", data.labels == 7)):
        np.savez(tmp_path / f"{name}.npz", **save | {"features": save["features"][rows], "labels": data.labels[rows]})
    assert ": 100 vectors of 8 dimensions, 5 classes, exact" in done("index", run, tmp_path / "some.npz")
    assert ": 120 vectors of 8 dimensions, 6 classes, exact" in done("index", run, tmp_path / "more.npz", "--add")


def test_search_as_json_with_a_filter_and_vectors_from_a_file(run: Path, vectors: str, tmp_path: Path) -> None:
    features = open_data(vectors).features
    assert features is not None
    np.save(tmp_path / "inputs.npy", features[[0, 50]])
    np.save(tmp_path / "embedding.npy", Run(run).embed(open_data(vectors)).numpy()[7])
    result = nearfar("search", run, tmp_path / "inputs.npy", tmp_path / "embedding.npy", "--json", "-k", 3)
    assert "has no index: embedding" in result.stderr
    found = json.loads(result.stdout)
    assert [each["results"][0]["id"] for each in found] == [0, 50, 7]
    assert found[0]["query"].endswith("inputs.npy row 0")
    assert all(each["results"][0]["distance"] < 1e-5 for each in found)
    assert list(found[0]["results"][0]) == ["rank", "id", "distance", "label", "name", "same"]
    done("index", run, vectors)
    only = json.loads(done("search", run, 0, "--label", "kind 03", "--label", "kind 04", "-k", 100, "--json"))
    assert {hit["label"] for hit in only[0]["results"]} == {"kind 03", "kind 04"}
    assert len(only[0]["results"]) == 40


def test_add_continues_ids_and_classes(run: Path, vectors: str, tmp_path: Path) -> None:
    done("index", run, vectors)
    rng = np.random.default_rng(0)
    more = Manifest(
        labels=[0, 1, 1],
        classes=("kind 05", "new"),
        split=["test"] * 3,
        features=rng.normal(size=(3, 16)).astype(np.float32),
    )
    save_manifest(more, tmp_path / "more.npz")
    assert done("index", run, tmp_path / "more.npz", "--add").startswith(
        f"{run / 'index'}: 243 vectors of 8 dimensions, 13 classes"
    )
    index = Index.load(run / "index")
    assert index.ids[-3:].tolist() == [240, 241, 242]
    assert [index.label_of(row) for row in (240, 241)] == ["kind 05", "new"]
    assert [(part.first, part.rows) for part in index.parts] == [(0, 240), (240, 3)]
    assert "row 242" in done("search", run, 241, "--label", "new")


@pytest.mark.parametrize("kind", ["hnsw", "ivf-pq"])
def test_approximate_kinds_print_their_recall(kind: str, run: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(600, 16)).astype(np.float32)
    many = Manifest(labels=np.arange(600) % 5, classes=tuple("abcde"), split=["test"] * 600, features=features)
    save_manifest(many, tmp_path / "many.npz")
    printed = done("index", run, tmp_path / "many.npz", "--kind", kind, "--out", tmp_path / "elsewhere")
    assert float(printed.split("exact search: ")[1].split("%")[0]) > 90
    assert not (run / "index").exists()
    assert Index.load(tmp_path / "elsewhere").kind == kind
    assert "row" in done("search", run, 3, "--index", tmp_path / "elsewhere")


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def test_page_with_images(image_run: Run, image_folder: Path, tmp_path: Path) -> None:
    query = image_folder / "c" / "1.png"
    done("search", image_run.path, 0, query, "-k", 3, "--html", tmp_path / "found.html")
    page = Page((tmp_path / "found.html").read_text())
    images = page.all("img")
    assert len(images) == 2 * (1 + 3)
    assert all((image["src"] or "").startswith("data:image/") for image in images)
    kinds = [item["class"] for item in page.all("li") if "title" in item]
    assert set(kinds[:3]) <= {"right", "wrong"}
    assert kinds[3:] == [""] * 3  # the class of a file is unknown
    assert not page.all("script")


def test_names_and_labels_are_escaped_on_the_page(run: Path, tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>'
    features = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
    names = tuple(f"{evil}{i}" for i in range(4))
    data = Manifest(labels=[0, 0, 1, 1], classes=(evil, "b"), split=["test"] * 4, features=features, paths=names)
    save_manifest(data, tmp_path / "evil.npz")
    done("index", run, tmp_path / "evil.npz")
    done("search", run, 0, 1, "-k", 3, "--html", tmp_path / "found.html")
    page = Page((tmp_path / "found.html").read_text())
    assert not page.all("script")
    assert sum("title" in item for item in page.all("li")) == 6


def test_names_replace_images_of_missing_data(run: Path, vectors: str, tmp_path: Path) -> None:
    moved = tmp_path / "moved.npz"
    half = open_data(vectors).subset(np.arange(100))
    save_manifest(half, moved)
    done("index", run, moved)
    moved.unlink()
    result = nearfar("search", run, 3, "--html", tmp_path / "found.html")
    assert result.exit_code == 0
    assert "cannot show the images of" in result.stderr
    assert "row 3" in (tmp_path / "found.html").read_text()


def test_errors_are_one_line(run: Path, vectors: str, drawing_run: Run, drawings: str, tmp_path: Path) -> None:
    assert "not a run directory" in failed("search", tmp_path, 1)
    done("index", run, vectors)
    assert "id 999 is not in the index" in failed("search", run, 999)
    assert "is not in the index" in failed("search", run, "9" * 5000)
    assert "no such file" in failed("search", run, "nothing.png")
    assert "did you mean 'kind 05'?" in failed("search", run, 1, "--label", "kin 05")
    np.save(tmp_path / "wide.npy", np.ones(5))
    assert "has vectors of 5 numbers, but the index needs 8 or 16" in failed("search", run, tmp_path / "wide.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "cannot be read as a NumPy array" in failed("search", run, tmp_path / "objects.npy")
    np.save(tmp_path / "nan.npy", np.full(8, np.nan))
    assert "must be an array of finite numbers" in failed("search", run, tmp_path / "nan.npy")
    (tmp_path / "text.png").write_text("not an image")
    assert "was trained on vectors" in failed("search", run, tmp_path / "text.png")
    assert "remove --kind hnsw" in failed("index", run, vectors, "--add", "--kind", "hnsw")
    assert "index.json is missing" in failed("index", run, vectors, "--add", "--out", tmp_path / "none")
    assert "needs at least 256 vectors" in failed("index", run, vectors, "--kind", "ivf-pq")
    assert "was not built with the weights of" in failed("search", drawing_run.path, 1, "--index", run / "index")
    assert "has gray images, " in failed("index", run, drawings)
    assert "has vectors of 16 numbers" in failed("index", drawing_run.path, vectors, "--out", tmp_path / "none")


def test_page_does_not_overwrite_the_query(image_run: Run, image_folder: Path, tmp_path: Path) -> None:
    query = tmp_path / "query.png"
    shutil.copy(image_folder / "c" / "1.png", query)
    before = query.read_bytes()
    assert "this command reads this file and would overwrite it" in failed(
        "search", image_run.path, query, "--html", query
    )
    assert query.read_bytes() == before


def test_samples_that_are_in_the_index_are_not_added_again(image_run: Run, image_folder: Path, tmp_path: Path) -> None:
    folder, index = tmp_path / "images", tmp_path / "index"
    shutil.copytree(image_folder, folder)
    (folder / "b" / "2x.png").unlink()
    shutil.copytree(folder, tmp_path / "other")
    done("index", image_run.path, folder, "--out", index)
    again = done("index", image_run.path, folder, "--add", "--out", index)
    assert again.splitlines()[0] == "skipped 30 of 30 samples: already in the index"
    assert len(Index.load(index)) == 30
    assert len(Index.load(index).parts) == 1
    for name in ("new", "newer"):
        shutil.copy(folder / "a" / "0.png", folder / "a" / f"{name}.png")
    grown = done("index", image_run.path, folder, "--add", "--out", index)
    assert grown.splitlines()[0] == "skipped 30 of 32 samples: already in the index"
    found = Index.load(index)
    assert found.names[30:] == ["a/new.png", "a/newer.png"]
    assert [found.label_of(row) for row in (30, 31)] == ["a", "a"]
    rows = found.ids[30:] - found.parts[1].first
    assert [open_data(folder).name(int(row)) for row in rows] == ["a/new.png", "a/newer.png"]
    assert "skipped" not in done("index", image_run.path, tmp_path / "other", "--add", "--out", index)
    assert len(Index.load(index)) == 62
    parts = Index.load(index).parts
    assert all(part.first + part.rows <= after.first for part, after in pairwise(parts))


def test_the_same_vectors_are_not_added_again(run: Path, vectors: str) -> None:
    done("index", run, vectors)
    assert "skipped 240 of 240 samples: already in the index" in done("index", run, vectors, "--add")
    assert len(Index.load(run / "index")) == 240


def test_a_missing_query_is_refused_before_the_data_is_embedded(vector_run: Run) -> None:
    result = nearfar("search", vector_run.path, "nosuch.jpg")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: nosuch.jpg: no such file: a query is an image, a .npy file of vectors or the id of a sample\n"
    )


def test_an_unreadable_query_is_refused_before_the_data_is_embedded(vector_run: Run, run: Path, tmp_path: Path) -> None:
    text, array = tmp_path / "text.jpg", tmp_path / "text.npy"
    text.write_text("not an image")
    array.write_text("not an array")
    result = nearfar("search", vector_run.path, array)
    assert result.stderr.startswith(f"Error: {array} cannot be read as a NumPy array")
    assert "was trained on vectors" in nearfar("search", vector_run.path, text).stderr
    assert "embedding" not in nearfar("search", vector_run.path, text).stderr
