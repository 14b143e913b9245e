"""What a person gives, a picture, a drawing or a vector, as the network takes the samples of the run's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from nearfar.data import Manifest, eval_transform
from nearfar.data.images import decode_image
from nearfar.data.manifest import Array
from nearfar.data.pixels import convert_image
from nearfar.data.transforms import Pipeline
from nearfar.errors import NearfarError
from nearfar.models import Embedder
from nearfar.report.thumbnails import Look, jpeg, png
from nearfar.serve.drawing import Strokes, rendered
from nearfar.training import Config
from nearfar.training.prepare import make_loader, side_of

MAX_PIXELS = 1 << 25
NAME = "the picture"
SHOWN = 168


@dataclass(frozen=True)
class Query:
    """The network's input, without the batch dimension, and how it looks, as a data URI (None for a vector)."""

    x: Tensor
    seen: str | None


class Queries:
    """Makes queries for the network of a run whose data is like `manifest`; `look` says whether these are drawings."""

    def __init__(self, config: Config, embedder: Embedder, manifest: Manifest, look: Look) -> None:
        self.kind, self.drawings = manifest.kind, look == "drawings"
        self._config, self._embedder = config, embedder
        self._side = side_of(config, embedder, manifest)
        self._shape = () if manifest.pixels is None else manifest.pixels.shape[1:]
        self.width = 0 if manifest.features is None or self.kind != "features" else manifest.features.shape[1]
        self._transform: Pipeline | None = None
        if self.kind == "files":
            side = self._side or embedder.input_size
            self._transform = eval_transform(side, config.images.resize, mean=embedder.mean, std=embedder.std)

    def picture(self, data: bytes) -> Query:
        """From the bytes of a picture file."""
        if self._transform is not None:
            picture = decode_image(data, NAME, draft=self._transform.draft, max_pixels=MAX_PIXELS)
            return Query(self._transform(picture), jpeg(ImageOps.contain(picture, (SHOWN, SHOWN))))
        if self.kind == "features":
            raise NearfarError("this run searches vectors: send a vector, not a picture")
        picture = decode_image(data, NAME, max_pixels=MAX_PIXELS)
        return self._pixels(convert_image(picture, self._shape, drawings=self.drawings))

    def drawing(self, strokes: Strokes) -> Query:
        """From the strokes of a pen, [[x, y], ...] each."""
        if not self.drawings or self._shape[0] != self._shape[1]:
            raise NearfarError("this run searches no drawings: send a picture")
        try:
            return self._pixels(rendered(strokes, self._shape[0]))
        except ValueError as error:
            raise NearfarError(str(error)) from None

    def vector(self, values: Sequence[float]) -> Query:
        """From a row of features, as those of the data."""
        x = torch.tensor(values, dtype=torch.float32)
        if self.kind != "features" or x.shape != (self.width,):
            want = f"vectors of {self.width} numbers" if self.kind == "features" else "pictures, not vectors"
            raise NearfarError(f"this run searches {want}, got {len(values)} numbers")
        if not bool(torch.isfinite(x).all()):
            raise NearfarError("the vector must be of finite numbers")
        return Query(x, None)

    def _pixels(self, pixels: Array) -> Query:
        single = Manifest(labels=np.zeros(1, np.int64), classes=("",), split=np.array(["test"]), pixels=pixels[None])
        samples = make_loader(single, self._config.images, self._embedder, side=self._side, seed=0).dataset
        return Query(samples.fetch([0])[0], png(Image.fromarray(255 - pixels if self.drawings else pixels)))
