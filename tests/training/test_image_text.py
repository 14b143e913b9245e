"""Two encoders built from configurations learn to find each other's samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import nearfar
from nearfar.data.image_text import open_pairs
from nearfar.errors import NearfarError
from nearfar.training.image_text import ImageTextModel, load_image_text
from text_cases import WORDS, save_bert

QUIET = {"say": lambda _: None, "progress": False}
COLORS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 60, 220), "yellow": (230, 220, 40)}


class Captions:
    """Images of a noisy color, with a text that names the color and a metal that does not matter."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, row: int) -> tuple[Image.Image, str]:
        name = list(COLORS)[row % 4]
        noise = np.random.default_rng(row).normal(0, 20, (16, 16, 3))
        pixels = np.clip(np.array(COLORS[name]) + noise, 0, 255).astype(np.uint8)
        return Image.fromarray(pixels), f"{name} {WORDS['metal'].split()[row // 4 % 5]}"


def image_encoder() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPVisionConfig(image_size=16, patch_size=8, **shape)
    network: nn.Module = transformers.CLIPVisionModel(config)
    return network


@pytest.mark.parametrize("loss", ["info-nce", "sigmoid"])
def test_pairs_are_found(loss: str, tmp_path: Path) -> None:
    save_bert(tmp_path / "bert")
    text = f"transformers:{tmp_path / 'bert'}"
    options: dict[str, Any] = {"loss": loss, "dim": 16, "batch_size": 16, "lr": 3e-3, "test": 0.25, **QUIET}
    start = nearfar.fit((image_encoder(), text), Captions(), steps=1, **(options | {"lr": 1e-9}))
    model = nearfar.fit((image_encoder(), text), Captions(), steps=50, out=tmp_path / "model", **options)
    assert isinstance(model, ImageTextModel)
    assert set(model.scores) == {f"{way} recall@{k}" for way in ("image to text", "text to image") for k in (1, 5, 10)}
    before, after = (m.evaluate(Captions())["image to text recall@5"] for m in (start, model))
    assert after > before + 0.1
    again = load_image_text(tmp_path / "model", image=image_encoder())
    images, texts = open_pairs(Captions())
    torch.testing.assert_close(again.embed(images), model.embed(images), rtol=0, atol=0)
    torch.testing.assert_close(again.embed(texts), model.embed(texts), rtol=0, atol=0)
    assert again.scores == model.scores


def test_pairs_of_a_table(tmp_path: Path) -> None:
    for row in range(4):
        Captions()[row][0].save(tmp_path / f"{row}.png")
    table = tmp_path / "pairs.csv"
    table.write_text("path,text\n0.png,red\n1.png,green\n2.png,red\n")
    images, texts = open_pairs(table)
    assert (images.paths, texts.texts) == (("0.png", "1.png", "2.png"), ("red", "green", "red"))
    assert images.labels.tolist() == texts.labels.tolist() == [1, 0, 1]


def test_bad_pairs_are_one_line(tmp_path: Path) -> None:
    def failed(data: Any, model: Any = ("small", "small"), **options: Any) -> str:
        with pytest.raises(NearfarError) as caught:
            nearfar.fit(model, data, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    table = tmp_path / "pairs.csv"
    table.write_text("path,caption\na.png,x\n")
    assert "has no column 'text' (it has path, caption)" in failed(table)
    table.write_text("path,text\na.png,x\n")
    assert "1 of 1 listed files do not exist, the first: a.png" in failed(table)
    assert "got int" in failed(3)
    assert "an item has no key 'text': its keys are image" in failed([{"image": Captions()[0][0]}])
    assert "does not support 'epochs': its settings are loss, dim, steps" in failed(Captions(), epochs=3)
    assert "does not support 'recipe'" in failed(Captions(), recipe="supcon")
    assert "does not support 'resume'" in failed(Captions(), resume=True)
    message = "model must be a pair (image encoder, text encoder), got a tuple of length 3"
    assert failed(Captions(), model=("small", "small", "small")) == message
    assert "the second one takes images or vectors" in failed(Captions(), pretrained=False, size=16, **QUIET)
