"""Small models of transformers with random weights, saved as model directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
IMAGES = {**SMALL, "image_size": 32, "patch_size": 16}


def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is an extra: pip install -e '.[hub]'")


def saved_vision(folder: Path, kind: str) -> Any:
    """Save a small model of a kind, and return its part for images."""
    library = transformers()
    torch.manual_seed(0)
    if kind == "clip":
        text = {**SMALL, "vocab_size": 9, "max_position_embeddings": 4, "eos_token_id": 2, "bos_token_id": 1}
        model = library.CLIPModel(library.CLIPConfig(text_config=text, vision_config=IMAGES, projection_dim=5))
    elif kind == "siglip":
        text = {**SMALL, "vocab_size": 9, "max_position_embeddings": 4}
        model = library.SiglipModel(library.SiglipConfig(text_config=text, vision_config=IMAGES))
    elif kind == "dinov2":
        model = library.Dinov2Model(library.Dinov2Config(**IMAGES))
    else:
        config = library.Dinov2WithRegistersConfig(**IMAGES, num_register_tokens=3)
        model = library.Dinov2WithRegistersModel(config)
    model.eval().save_pretrained(folder)
    return getattr(model, "vision_model", model)
