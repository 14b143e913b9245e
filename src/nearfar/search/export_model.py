"""Export the model of a run to ONNX (and compare it with torch) or to safetensors, with a model card."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from nearfar.errors import NearfarError, install_hint
from nearfar.files import atomic
from nearfar.model_card import model_card
from nearfar.models import Embedder
from nearfar.ops.geometry import unit
from nearfar.search.encoder import Encoder
from nearfar.search.export_text import (
    TextExportModule,
    describe_text_export,
    example_tokens,
    join_inputs,
    text_onnx_usage,
    text_safetensors_usage,
    tokenizer_json,
)
from nearfar.training.embedder_file import save_embedder

BATCH_SIZES = (1, 2, 7, 32)
TOLERANCE = 1e-4


class ExportModule(nn.Module):
    """Map a batch of uint8 images [B, C, H, W] or vectors [B, d] to unit embeddings [B, dim].

    Images are first normalized with the mean and standard deviation that the network expects. If the network has its
    own transform, the inputs are the float32 results of this transform, and they are not normalized.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.embedder = embedder
        self.takes_images = embedder.takes_pixels
        if self.takes_images:
            self.register_buffer("mean", torch.tensor(embedder.mean)[:, None, None])
            self.register_buffer("std", torch.tensor(embedder.std)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        if self.takes_images:
            x = (x.float() / 255 - self.mean) / self.std
        return normalize(self.embedder(x))


def export_onnx(encoder: Encoder, folder: Path) -> tuple[Path, float]:
    """Write model.onnx and README.md. For a network that embeds texts, also write tokenizer.json.

    Returns:
        The path of model.onnx, and the largest difference between its embeddings and those of torch.

    Raises:
        NearfarError: If a package is missing, or if the difference is above 1e-4. In both cases, no file is written.
    """
    _check_packages()
    takes_texts = encoder.network.backbone.has_text_input
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with _hidden_warnings():
        program: Any = torch.onnx.export(
            (TextExportModule if takes_texts else ExportModule)(encoder.network).eval(),
            example_inputs(encoder, 2),
            input_names=["input_ids", "attention_mask"] if takes_texts else ["input"],
            output_names=["sentence_embedding" if takes_texts else "embedding"],
            dynamic_shapes=(dynamic, dynamic) if takes_texts else ({0: torch.export.Dim.DYNAMIC},),
            dynamo=True,
            verbose=False,
        )
    _make_names_distinct(program.model.graph)
    program.model.metadata_props.update({"nearfar": json.dumps(_describe(encoder))})
    path = folder / "model.onnx"
    with atomic(path) as draft:
        program.save(str(draft), external_data=False)
        difference = largest_difference(draft, encoder)
        if not difference <= TOLERANCE:
            raise NearfarError(
                f"{path} was not written: its embeddings differ from those of torch by {difference:.1e}, "
                f"but at most {TOLERANCE:.0e} is allowed: export with --format safetensors"
            )
    if takes_texts:
        _write(folder / "tokenizer.json", tokenizer_json(encoder))
    usage = text_onnx_usage(encoder) if takes_texts else _onnx_usage(encoder)
    _write(folder / "README.md", model_card(encoder.run, encoder.network, usage))
    return path, difference


def _make_names_distinct(graph: Any) -> None:
    """Rename inner values of an ONNX graph that have the same name as an output of the graph.

    Such a clash occurs, for example, if the network has a layer named "embedding".
    """
    for name in [output.name for output in graph.outputs]:
        constant = graph.initializers.pop(name, None)
        if constant is not None:
            constant.name = f"{name}_inside"
            graph.register_initializer(constant)
        for value in (value for node in graph for value in node.outputs):
            if value.name == name and not value.is_graph_output():
                value.name = f"{name}_inside"


def largest_difference(path: Path, encoder: Encoder) -> float:
    """Return the largest difference between the embeddings of an ONNX file and those of torch.

    Both models embed the same random inputs, in batches of several sizes.
    """
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    worst = 0.0
    for batch in BATCH_SIZES:
        inputs = example_inputs(encoder, batch)
        names = [each.name for each in session.get_inputs()]
        (theirs,) = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})
        ours = unit(torch.from_numpy(encoder.embed_batch(join_inputs(inputs)))).numpy()
        if theirs.shape != ours.shape:
            raise NearfarError(
                f"{path} returns shape {list(theirs.shape)} for a batch of {batch}, expected {list(ours.shape)}"
            )
        # Unlike max(), np.maximum returns NaN if either argument is NaN. `export_onnx` rejects NaN.
        worst = float(np.maximum(worst, np.abs(theirs - ours).max()))
    return worst


def export_safetensors(encoder: Encoder, folder: Path) -> Path:
    """Write model.safetensors, config.yaml and README.md, and return the path of model.safetensors.

    `load_embedder` reads model.safetensors.
    """
    path = folder / "model.safetensors"
    for name in ("model.safetensors", "config.yaml"):
        if not (encoder.run.path / name).is_file():
            raise NearfarError(f"{encoder.run.path} is not a run directory: use save_pretrained, or --format onnx")
        with atomic(folder / name) as draft:
            shutil.copyfile(encoder.run.path / name, draft)
    if (
        encoder.network.truncated is not None
    ):  # write the file again, because its header must store the number of dimensions to keep
        save_embedder(encoder.network, path)
    _write(folder / "README.md", model_card(encoder.run, encoder.network, _safetensors_usage(encoder)))
    return path


def _check_packages() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(name)
        except ImportError:
            raise NearfarError(f"ONNX export needs {name}: {install_hint('onnx')}") from None


@contextmanager
def _hidden_warnings() -> Iterator[None]:
    """Hide the warnings of the exporter: they concern torchvision and deprecated names in torch, not the model."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def example_inputs(encoder: Encoder, batch: int) -> tuple[Tensor, ...]:
    """Return random inputs of the exported model: images or vectors, or tokens and their mask."""
    if encoder.network.backbone.has_text_input:
        return example_tokens(encoder, batch)
    return (_example(encoder, batch, seed=batch),)


def _example(encoder: Encoder, batch: int, *, seed: int) -> Tensor:
    generator, shape = torch.Generator().manual_seed(seed), encoder.input_shape
    if not encoder.network.takes_pixels:
        return torch.randn(batch, *shape, generator=generator)
    return torch.randint(0, 256, (batch, *shape), generator=generator, dtype=torch.uint8)


def _describe(encoder: Encoder) -> dict[str, Any]:
    network = encoder.network
    if network.backbone.has_text_input:
        return describe_text_export(encoder)
    return {
        "input": f"{'uint8' if network.takes_pixels else 'float32'} [batch, {_sizes(encoder)}]",
        "output": f"float32 [batch, {network.dim}], unit vectors, so the dot product of two embeddings is their cosine",
        "inside": "(x / 255 - mean) / std" if network.takes_pixels else "",
        "before": encoder.preparation,
        "model_sha256": encoder.model,
    }


def _sizes(encoder: Encoder) -> str:
    return ", ".join(map(str, encoder.input_shape))


def _onnx_usage(encoder: Encoder) -> str:
    description = _describe(encoder)
    dtype = "uint8" if encoder.network.takes_pixels else "float32"
    return f"""`model.onnx` takes `input`, {description["input"]}, and returns `embedding`,
{description["output"]}. The batch can have any size.
{description["before"]}

```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
batch = np.zeros((2, {_sizes(encoder)}), dtype=np.{dtype})
(embedding,) = session.run(None, {{"input": batch}})
cosine = embedding @ embedding.T
```"""


def _safetensors_usage(encoder: Encoder) -> str:
    network = encoder.network
    if network.backbone.has_text_input:
        return text_safetensors_usage(encoder)
    scaling = (
        f", pixel values x scaled as (x / 255 - {tuple(network.mean)}) / {tuple(network.std)}"
        if network.takes_pixels
        else ""
    )
    return f"""`model.safetensors` holds the weights and, in its header, the architecture. Nothing is pickled.
The input is float32 [batch, {_sizes(encoder)}]{scaling}. {encoder.preparation}

```python
from pathlib import Path

import torch
from nearfar.ops.geometry import unit
from nearfar.training import load_embedder

embedder = load_embedder(Path("model.safetensors"))
with torch.no_grad():
    embedding = unit(embedder(torch.zeros(2, {_sizes(encoder)})))
```"""


def _write(path: Path, text: str) -> None:
    with atomic(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="replace")
