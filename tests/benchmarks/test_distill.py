"""The benchmark of distillation: what the objectives measure, that students learn them, and the rows of the table."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import distill
from benchmarks.distill import DISTILLATION, Encoder, cut, embed, fit, main
from nearfar.ops.geometry import unit

WORDS = ["open", "close", "buy", "sell", "play", "stop", "call", "send", "find", "lose"]
TEXTS = [f"{verb} the {noun}" for verb in WORDS for noun in ("door", "song", "ticket", "letter")]


class Tokenizer:
    """A tokenizer that counts words up from 1. All texts have three words, so that none is padded."""

    def __call__(self, texts: list[str], **_: object) -> dict[str, torch.Tensor]:
        vocabulary = {word: i + 1 for i, word in enumerate(sorted({word for text in TEXTS for word in text.split()}))}
        ids = torch.tensor([[vocabulary[word] for word in text.split()] for text in texts])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.fixture
def encoder() -> Encoder:
    library = pytest.importorskip("transformers", reason="an extra: pip install -e '.[text]'")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}
    config = library.BertConfig(vocab_size=32, hidden_dropout_prob=0, attention_probs_dropout_prob=0, **sizes)
    return Encoder(library.BertModel(config, add_pooling_layer=False), Tokenizer())


def test_the_objectives_are_zero_for_the_embeddings_that_they_ask_for() -> None:
    x = unit(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    rotated = x.flip(1)
    direct, relational = (DISTILLATION[name] for name in ("direct", "relational"))
    assert direct(x, x, x).item() == pytest.approx(0, abs=1e-6)
    assert direct(rotated, x, x).item() > 0.1
    assert relational(rotated, x, x).item() == pytest.approx(0, abs=1e-6), "a rotation keeps all cosines"
    assert relational(x[[1, 2, 3, 4, 5, 0]], x, x).item() > 0.01


@pytest.mark.parametrize("method", [*DISTILLATION, "labels"])
def test_a_student_learns_the_objective(encoder: Encoder, method: str) -> None:
    student = cut(encoder, 2)
    assert len(student.model.encoder.layer) == 2  # type: ignore[union-attr, arg-type]
    assert len(encoder.model.encoder.layer) == 4  # type: ignore[union-attr, arg-type]
    labels = torch.arange(len(TEXTS)) // 4
    targets, before = embed(encoder, TEXTS), embed(student, TEXTS)
    options = SimpleNamespace(lr=3e-3, epochs=15, batch=8)
    fit(student, TEXTS, labels, method, options, seed=0, targets=targets)
    after = embed(student, TEXTS)
    if method != "labels":
        objective = DISTILLATION[method]
        assert objective(after, targets, labels) < 0.5 * objective(before, targets, labels)
        return
    same = labels[:, None] == labels
    gap = [(x @ x.T)[same].mean() - (x @ x.T)[~same].mean() for x in (before, after)]
    assert gap[1] > gap[0] + 0.1


def test_the_table_has_a_row_for_each_network(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(distill, "load_encoder", lambda: copy.deepcopy(encoder))
    data = tmp_path / "texts.csv"
    lines = [f"{text},class {i // 4}" for i, text in enumerate(TEXTS)]
    data.write_text("\n".join(["text,label", *lines]) + "\n")
    main([str(data), "--layers", "2", "--epochs", "1", "--batch", "8", "--test-per-class", "3", "--seeds", "2"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert [row[0].removeprefix("| ") for row in rows] == [
        "teacher, published weights",
        "teacher, trained with labels",
        "student, not trained",
        "student, trained with labels",
        "student, direct from the published teacher",
        "student, relational from the published teacher",
        "student, direct from the trained teacher",
        "student, relational from the trained teacher",
    ]
    scores = [tuple(map(float, row[1].split(", "))) for row in rows]
    assert all(len(of_seeds) == 2 for of_seeds in scores)
    assert scores[0][0] == scores[0][1], "a network that is not trained does not depend on the seed"
    # each of the five test classes has three texts, so that Recall@1 is a multiple of 1 / 15
    assert all(abs(value * 0.15 - round(value * 0.15)) < 0.01 for of_seeds in scores for value in of_seeds)
