"""Small text data, and a small BERT built from a configuration, with a tokenizer of its words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

WORDS = {
    "fruit": "apple pear plum cherry melon",
    "tool": "hammer saw drill wrench chisel",
    "bird": "owl robin crow finch heron",
    "color": "red green blue yellow violet",
    "metal": "iron copper silver gold tin",
    "music": "violin piano drum flute horn",
}


def sentences(per_class: int = 8) -> list[tuple[str, str]]:
    """Return (text, label) pairs of six classes. Each text has one to four words of its class."""
    rows = []
    for label, words in WORDS.items():
        names = words.split()
        for i in range(per_class):
            rows.append((" ".join(names[(i + j) % 5] for j in range(1 + i % 4)), label))
    return rows


def write_csv(path: Path, rows: list[tuple[str, str]] | None = None) -> Path:
    lines = ["text,label", *(f"{text},{label}" for text, label in rows or sentences())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def save_bert(folder: Path, **changes: Any) -> Any:
    """Save a small BERT with random weights, and its tokenizer. Return the model."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    settings = {
        "vocab_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
        **changes,
    }
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**settings)).eval()
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    """Save a tokenizer that splits at spaces and adds [CLS] and [SEP]."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    vocabulary |= {word: i for i, word in enumerate(" ".join(WORDS.values()).split(), start=4)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
