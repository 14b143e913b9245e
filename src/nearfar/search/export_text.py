"""Export a network for texts, whose inputs are tokens and a mask, together with its tokenizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from nearfar.models import Embedder
from nearfar.models.backbones.text_transformer import TextTransformer
from nearfar.models.tokenizer import PADDING
from nearfar.search.encoder import Encoder

OUTPUT = "unit vectors, so the dot product of two embeddings is their cosine"
# Lengths of the example texts. The exported model must accept batches of texts of different lengths.
SHORTEST, LONGEST = 3, 24


class TextExportModule(nn.Module):
    """Map tokens [B, L] and their mask [B, L] (1 for tokens, 0 for padding) to unit embeddings [B, dim]."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.embedder = embedder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return normalize(self.embedder(join_inputs((input_ids, attention_mask))))


def join_inputs(inputs: tuple[Tensor, ...]) -> Tensor:
    """Join the inputs of the exported model into the single input of the embedder.

    For images and vectors, `inputs` holds one tensor, which is returned. For texts, `inputs` holds the tokens and their
    mask, and the result is the tokens with PADDING where the mask is 0.
    """
    if len(inputs) == 1:
        return inputs[0]
    ids, mask = inputs
    return ids.masked_fill(mask == 0, PADDING)


def example_tokens(encoder: Encoder, batch: int) -> tuple[Tensor, Tensor]:
    """Return random tokens and their mask for a batch of texts of different lengths."""
    backbone = _text_backbone(encoder)
    generator = torch.Generator().manual_seed(batch)
    words = int(getattr(backbone.model.config, "vocab_size", 2))
    length = min(LONGEST, encoder.network.input_size)
    ids = torch.randint(0, words, (batch, length), generator=generator)
    lengths = torch.randint(min(SHORTEST, length), length + 1, (batch, 1), generator=generator)
    lengths[0] = length
    return ids, (torch.arange(length) < lengths).long()


def tokenizer_json(encoder: Encoder) -> str:
    """Return the content of the file tokenizer.json."""
    return _text_backbone(encoder).tokenizer.json


def describe_text_export(encoder: Encoder) -> dict[str, Any]:
    """Return the metadata of the exported model."""
    return {
        "input": "int64 [batch, length] (input_ids) and int64 [batch, length] (attention_mask: 1 = token, 0 = padding)",
        "output": f"float32 [batch, {encoder.dim}], {OUTPUT}",
        "inside": "",
        "before": encoder.preparation,
        "model_sha256": encoder.model,
    }


def text_onnx_usage(encoder: Encoder) -> str:
    """Return the section of the model card that explains model.onnx."""
    return f"""`model.onnx` takes `input_ids` and `attention_mask`, both int64 [batch, length], and returns
`sentence_embedding`, float32 [batch, {encoder.dim}], {OUTPUT}. The batch can have any size.
{encoder.preparation}

```python
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({encoder.network.input_size})
tokenizer.enable_padding()
session = onnxruntime.InferenceSession("model.onnx")
batch = tokenizer.encode_batch(["first text", "a second text"])
ids, mask = (np.array([getattr(text, part) for text in batch]) for part in ("ids", "attention_mask"))
(embedding,) = session.run(None, {{"input_ids": ids, "attention_mask": mask}})
cosine = embedding @ embedding.T
```"""


def text_safetensors_usage(encoder: Encoder) -> str:
    """Return the section of the model card that explains model.safetensors."""
    return f"""`model.safetensors` holds the weights and, in its header, the architecture and the tokenizer. Nothing is
pickled. {encoder.preparation}

```python
from pathlib import Path

import torch
from nearfar.ops.geometry import unit
from nearfar.training import load_embedder

embedder = load_embedder(Path("model.safetensors"))
tokens = embedder.backbone.tokenizer.batch(["first text", "a second text"], max_tokens=embedder.input_size)
with torch.no_grad():
    embedding = unit(embedder(torch.from_numpy(tokens)))
```"""


def _text_backbone(encoder: Encoder) -> TextTransformer:
    backbone = encoder.network.backbone
    assert isinstance(backbone, TextTransformer)
    return backbone
