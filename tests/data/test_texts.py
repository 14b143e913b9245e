"""Texts in CSV and JSONL tables: what is read, and one line for each kind of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from nearfar.data import Manifest, open_data, save_manifest
from nearfar.data.text_dataset import TextDataset
from nearfar.errors import NearfarError
from nearfar.models.tokenizer import TextTokenizer
from text_cases import save_tokenizer, sentences, write_csv


def write_lines(path: Path, *records: object) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n", encoding="utf-8")
    return path


def test_a_csv_of_texts_is_split_by_class_order(tmp_path: Path) -> None:
    manifest = open_data(write_csv(tmp_path / "t.csv"))
    assert (manifest.kind, len(manifest), len(manifest.classes)) == ("text", 48, 6)
    assert manifest.texts is not None
    assert manifest.texts[1] == "pear plum"
    assert set(manifest.subset("train").compact().classes) == {"bird", "color", "fruit"}
    assert str(manifest.summary()).startswith("t.csv: 48 texts, 6 classes")
    assert manifest.name(1) == "pear plum"


def test_columns_and_splits_are_chosen(tmp_path: Path) -> None:
    rows = [{"u": "a b", "intent": 3, "split": "train"}, {"u": "c", "intent": 4, "split": "test"}]
    manifest = open_data(write_lines(tmp_path / "t.jsonl", *rows), text="u", label="intent")
    assert (manifest.texts, manifest.classes, manifest.split.tolist()) == (("a b", "c"), ("3", "4"), ["train", "test"])
    (tmp_path / "t.csv").write_text("path,u,intent,split\nx,a b,3,train\ny,c,4,test\n")
    assert open_data(tmp_path / "t.csv", text="u", label="intent") == manifest


def test_a_saved_manifest_of_texts_is_opened_unchanged(tmp_path: Path) -> None:
    texts = ("=1+1", "two\nlines", "it's, 'quoted'", "ümlaut 猫")
    manifest = Manifest(labels=[0, 1, 1, 0], classes=("b", "a"), split=["train", "test", "val", "train"], texts=texts)
    save_manifest(manifest, tmp_path / "m.csv")
    assert open_data(tmp_path / "m.csv") == manifest
    other = Manifest(labels=[0, 1, 1, 0], classes=("b", "a"), split=manifest.split, texts=(*texts[:3], "other"))
    assert other != manifest
    assert manifest.subset([2, 0]).texts == (texts[2], texts[0])
    with pytest.raises(NearfarError, match=r"must end in \.csv|no paths|save"):
        save_manifest(manifest, tmp_path / "m.npz")


LONG = "word " * 200_000
BAD_CSV = [
    (b"utterance,label\na,1\n", "no column 'path' .*: for texts, set data.text"),
    (b"text,intent\na,1\n", "no column 'label' .*set data.label"),
    (b"text,label\na,1\n , 2\n", "row 3: the text is empty"),
    (b"text,label\na,\n", "row 2: the label is empty"),
    (b"text,label\ncaf\xe9,1\n", "row 2: the text has bytes that are not UTF-8"),
    (f"text,label\n{LONG},1\n".encode(), "cannot be read as CSV .*split the text"),
    (b"text,label\n" + b"x" * 110_000 + b",1\n", "row 2: the text has 110,000 characters"),
]


@pytest.mark.parametrize(("content", "message"), BAD_CSV)
def test_a_bad_csv_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(NearfarError, match=message) as caught:
        open_data(tmp_path / "t.csv")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def line(text: object = "a", label: object = "b") -> str:
    return json.dumps({"text": text, "label": label})


BAD_JSONL = [
    ("", "is empty"),
    ("{bad", "line 1: not valid JSON"),
    ("[1]", "line 1: expected a JSON object"),
    (line(text=5), "line 1: 'text' must be a string, got 5"),
    (line(text=None), "line 1: 'text' must be a string, got null"),
    (line(label=1.5), "line 1: 'label' must be a string, a whole number or a list of strings, got 1.5"),
    (line(label=True), "line 1: 'label' must be a string, a whole number or a list of strings, got true"),
    (line(label="1") + "\n" + line(label=1), "line 2: 'label' is a whole number, but in line 1 it is a string"),
    (line(label=["a", 1]), "line 1: 'label' must be a string, a whole number or a list of strings, got"),
    (line(label=["a"]) + "\n" + line(), "line 2: 'label' is a string, but in line 1 it is a list of strings"),
    (line(label=[]), "row 1"),
    (line() + "\n" + '{"text": "a", "lable": "b"}', "line 2: there is no key 'label'; did you mean 'lable'"),
    ('{"utterance": "a", "label": "b"}', "no column 'path'"),
    (line(text=" "), "row 1: the text is empty"),
    (line(text=LONG), "row 1: the text has 1,000,000 characters"),
    ('{"text": "\\ud800", "label": "b"}', "row 1: the text has bytes that are not UTF-8"),
]


@pytest.mark.parametrize(("content", "message"), BAD_JSONL)
def test_bad_json_lines_are_refused_in_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(NearfarError, match=message) as caught:
        open_data(tmp_path / "t.jsonl")
    assert "\n" not in str(caught.value)


ROWS = [("a b", "x|y", "g1", "c1"), ("c", "y", "g1", "c2"), ("d e f", "z", "g2", "c1"), ("b", "x|z", "g3", "c2")]


def test_several_labels_groups_and_cameras_are_the_same_in_all_tables(tmp_path: Path) -> None:
    options = {"separator": "|", "group": "of", "camera": "cam"}
    names = ("text", "label", "of", "cam")
    for name, mark in (("t.csv", ","), ("t.tsv", "\t"), ("t.TSV", "\t")):
        (tmp_path / name).write_text("\n".join(mark.join(row) for row in (names, *ROWS)), encoding="utf-8")
    records = [dict(zip(names, row, strict=True)) for row in ROWS]
    write_lines(tmp_path / "t.jsonl", *records)
    write_lines(tmp_path / "lists.jsonl", *({**record, "label": record["label"].split("|")} for record in records))
    expected = open_data(tmp_path / "t.csv", **options)
    assert expected.annotations is not None
    assert expected.annotations.label_sets is not None
    for name in ("t.tsv", "t.TSV", "t.jsonl", "lists.jsonl"):
        found = open_data(tmp_path / name, **(options | ({"separator": None} if name == "lists.jsonl" else {})))
        assert found.annotations is not None
        assert found.classes == expected.classes
        for part in ("label_sets", "group", "camera"):
            assert np.array_equal(getattr(found.annotations, part), getattr(expected.annotations, part)), (name, part)
    with pytest.raises(NearfarError, match=r"lists of labels, which need no data\.separator"):
        open_data(tmp_path / "lists.jsonl", separator="|")
    with pytest.raises(NearfarError, match=r"has no key 'came' for data\.camera .*did you mean 'cam'"):
        open_data(tmp_path / "t.jsonl", camera="came")


def test_an_unknown_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match=r"no column 'txt' for data.text .*did you mean 'text'"):
        open_data(write_csv(tmp_path / "t.csv"), text="txt")
    with pytest.raises(NearfarError, match=r"no key 'txt' .*did you mean 'text'"):
        open_data(write_lines(tmp_path / "t.jsonl", {"text": "a", "label": "b"}), text="txt")
    (tmp_path / "images" / "a").mkdir(parents=True)
    with pytest.raises(NearfarError, match=r"data\.text does not apply to the layout"):
        open_data(tmp_path / "images", text="txt")


def test_texts_are_tokenized_and_padded(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokenizer = TextTokenizer.from_directory(tmp_path)
    texts = tuple(text for text, _ in sentences(3)[:3])
    manifest = Manifest(labels=[0] * 3, classes=("a",), split=["train"] * 3, texts=texts)
    dataset = TextDataset(manifest, tokenizer, max_tokens=4)
    # [CLS] apple [SEP]; [CLS] pear plum [SEP]; the third text of three words is cut
    assert dataset.fetch([2, 0]).tolist() == [[2, 6, 7, 3], [2, 4, 3, -1]]
    assert dataset.fetch(torch.tensor([0])).tolist() == [[2, 4, 3]]
    assert dataset.cut == 2
