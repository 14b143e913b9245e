"""Ancestors of classes from columns and from a taxonomy file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nearfar.config.merge import resolve
from nearfar.data import open_data
from nearfar.data.taxonomy import class_levels
from nearfar.errors import NearfarError
from nearfar.metrics import evaluate
from nearfar.training import train
from nearfar.training.evaluate import score
from training_cases import saved_vectors

TABLE = (
    "text,label,genus,family,split\na,lion,panthera,cats,train\nb,tiger,panthera,cats,train\nc,lynx,lynx,cats,train\n"
)
TABLE += "d,oak,panthera,trees,train\ne,lion,panthera,cats,train\n"


def test_columns_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TABLE)
    data = open_data(path, levels=["genus", "family"])
    assert data.classes == ("lion", "lynx", "oak", "tiger")
    levels = class_levels(data)
    assert levels is not None
    same_genus = levels[:, None, 0] == levels[None, :, 0]
    assert same_genus[0].tolist() == [True, False, False, True]  # the genus of the oak has another family
    assert (levels[:, 1] == levels[0, 1]).tolist() == [True, True, False, True]
    part = class_levels(data.subset([2, 3]).compact())
    assert part is not None
    assert len(np.unique(part[:, 1])) == 2
    assert data.fingerprint != open_data(path).fingerprint
    assert class_levels(open_data(path)) is None


@pytest.mark.parametrize(
    ("change", "levels", "message"),
    [
        (("e,lion,panthera", "e,lion,felis"), ["genus", "family"], "class 'lion' has two values of genus, 'panthera'"),
        (("c,lynx,lynx", "c,lynx,"), ["genus"], "the genus of class 'lynx' is empty"),
        (("", ""), ["genos"], "no column 'genos' for data.levels.*did you mean 'genus'"),
    ],
)
def test_errors_of_columns(tmp_path: Path, change: tuple[str, str], levels: list[str], message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TABLE.replace(*change))
    with pytest.raises(NearfarError, match=message):
        open_data(path, levels=levels)


def test_a_run_with_a_taxonomy_file_learns_and_scores_the_hierarchy(tmp_path: Path) -> None:
    source = saved_vectors(tmp_path / "v.npz", classes=12, per_class=6, noise=0.5)
    file = tmp_path / "taxonomy.csv"
    file.write_text("label,parent\n" + "".join(f"kind {i:02d},group {i // 3}\n" for i in range(12)))
    settings = [f"data.source={source}", f"data.taxonomy={file}", "model.dim=8", "steps=6", "batches.size=24"]
    settings += ["loss=[{name: hap, weight: 0.9}, {name: normalized-softmax, weight: 0.1}]"]
    settings += ["metrics=[recall@1, h-ap, graded-ndcg@5]", "threads=1"]
    run = train(resolve("features", recipe="supcon", settings=settings), tmp_path / "run", say=lambda _: None)
    scores = run.results()["test"]
    assert 0 < scores["h-ap"] <= 1
    data = open_data(source, taxonomy=file).subset("test")
    x = torch.from_numpy(data.features.copy())
    chains = {name: (f"group {int(name[-2:]) // 3}",) for name in data.classes}
    direct = evaluate(x, [data.classes[i] for i in data.labels], hierarchy=chains, metrics=["h-ap"])
    assert score(x, data, ["h-ap"]) == direct
    assert direct["h-ap"] != pytest.approx(evaluate(x, data.labels, metrics=["h-ap"])["h-ap"])
    assert 0 < scores["graded-ndcg@5"] <= 1
    assert all(entry["loss/hap"] > 0 for entry in run.log() if entry["kind"] == "step")
    file.write_text("label,parent\nkind 00,group\n")
    with pytest.raises(NearfarError, match="has no row for 11 classes, the first: 'kind 01'"):
        open_data(source, taxonomy=file)
    file.write_text("parent,label\n")
    with pytest.raises(NearfarError, match=r"the first column must be label, .* got parent,label"):
        open_data(source, taxonomy=file)


def test_label_noise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TABLE)
    data = open_data(path, levels=["genus"])
    with pytest.raises(NearfarError, match=r"set data\.noise\.rate=0"):
        class_levels(data.with_labels(np.zeros(5, dtype=np.int64)))
