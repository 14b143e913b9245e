"""Convert queries that clients send (image, drawing, text or vector) to inputs of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.report.thumbnails import encode_jpeg, encode_png
from nearfar.search import Encoder
from nearfar.serve.drawing import Strokes, render_strokes

MAX_PIXELS = 1 << 25


@dataclass(frozen=True)
class QueryInput:
    """The network's input without the batch dimension, and a preview as a data URI (None for vectors and texts)."""

    x: Tensor
    preview: str | None


class QueryReader:
    """Convert queries to inputs of the network of a run.

    Args:
        encoder: The encoder of the run.
        manifest: The data of the run.
    """

    def __init__(self, encoder: Encoder, manifest: Manifest) -> None:
        self._encoder = encoder
        self.kind = manifest.kind
        self.input_dim = 0 if manifest.features is None or self.kind != "features" else manifest.features.shape[1]

    @property
    def accepts_drawings(self) -> bool:
        """Whether the run's data consists of drawings, so that a query can be a drawing."""
        return self.kind not in ("features", "text") and self._encoder.images.are_drawings

    def read_image(self, data: bytes) -> QueryInput:
        """Return the network input and the preview for the bytes of an image file."""
        if self.kind in ("features", "text"):
            what = "vectors: send a vector" if self.kind == "features" else "texts: send a text"
            raise NearfarError(f"this run searches {what}, not an image")
        image = self._encoder.images.decode(data, "the image", max_pixels=MAX_PIXELS)
        x, preview = self._encoder.images.prepare(image)
        return QueryInput(x, encode_jpeg(preview) if self.kind == "files" else encode_png(preview))

    def read_drawing(self, strokes: Strokes) -> QueryInput:
        """Return the network input and the preview for a drawing. Each stroke is a list of points [x, y]."""
        shape = self._encoder.images.array_shape if self.accepts_drawings else ()
        if len(shape) != 2 or shape[0] != shape[1]:
            other = {"features": "a vector", "text": "a text"}.get(self.kind, "an image")
            raise NearfarError(f"this run does not accept drawings as queries: send {other}")
        try:
            pixels = render_strokes(strokes, shape[0])
        except ValueError as error:
            raise NearfarError(str(error)) from None
        return QueryInput(self._encoder.images.prepare_array(pixels), encode_png(Image.fromarray(255 - pixels)))

    def read_text(self, text: str) -> QueryInput:
        """Return the network input for a text: its tokens, without padding."""
        if self.kind != "text":
            raise NearfarError(f"this run searches {'vectors' if self.kind == 'features' else 'images'}, not texts")
        if not text.strip():
            raise NearfarError("the text is empty")
        return QueryInput(self._encoder.tokenize([text])[0], None)

    def read_vector(self, values: Sequence[float]) -> QueryInput:
        """Return the network input for a feature vector, which must be as long as those of the run's data."""
        x = torch.tensor(values, dtype=torch.float32)
        if self.kind != "features" or x.shape != (self.input_dim,):
            others = "texts, not vectors" if self.kind == "text" else "images, not vectors"
            expected = f"vectors of {self.input_dim} numbers, got {len(values)}" if self.kind == "features" else others
            raise NearfarError(f"this run searches {expected}")
        if not bool(torch.isfinite(x).all()):
            raise NearfarError("the vector must contain only finite numbers")
        return QueryInput(x, None)
