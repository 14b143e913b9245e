"""Convert query images to the input of a run's network, for `nearfar search` and `nearfar serve`."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps
from torch import Tensor

from nearfar.config.schema import Config
from nearfar.data import Manifest, eval_transform
from nearfar.data.datasets import Transform
from nearfar.data.images import MAX_PIXELS, decode_image
from nearfar.data.manifest import Array
from nearfar.data.pixels import convert_image
from nearfar.data.transforms import Pipeline
from nearfar.models import Embedder
from nearfar.models.own_network import describe_origin
from nearfar.report.thumbnails import Thumbnails
from nearfar.training.prepare import prepare

PREVIEW_SIDE = 168


class ImageInput:
    """Convert query images to the input of a run's network.

    If the run was trained on image files, a query is prepared in the same way as the test images: by the transform of
    the network if it has one, otherwise by resizing and center-cropping. If the run was trained on arrays, a query
    becomes an array of the same shape. If these arrays are drawings, a query with dark ink on light paper is inverted
    to white on black (see `nearfar.data.pixels`).

    Args:
        config: The configuration of the run.
        network: The embedder of the run.
        arrays: The data of the run if its images are arrays, otherwise None.
    """

    def __init__(self, config: Config, network: Embedder, arrays: Manifest | None) -> None:
        self._config, self._network, self._arrays = config, network, arrays
        self.are_drawings = arrays is not None and Thumbnails(arrays).kind == "drawings"
        # The shape of an image of the run's data if the images are arrays, () if they are files.
        self.array_shape: tuple[int, ...] = ()
        self._side: int | None = network.input_size
        self._transform: Transform
        if arrays is not None:
            assert arrays.pixels is not None
            self.array_shape = arrays.pixels.shape[1:]
            self._side = prepare(config, arrays, network).image_size
        elif network.transform is not None:
            self._transform = network.transform
        else:
            self._transform = eval_transform(
                network.input_size, config.images.resize, mean=network.mean, std=network.std
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the network's input: channels, height, width."""
        if self._side is None:
            return (1, self.array_shape[0], self.array_shape[1])
        return (self._network.channels, self._network.input_size, self._network.input_size)

    @property
    def description(self) -> str:
        """A sentence that describes how to prepare an image for the network, before mean and std are applied."""
        channels, height, width = self.shape
        if self._arrays is not None:
            drawing = ", white on black, with the ink at the top left and scaled to fit" if self.are_drawings else ""
            return f"Images are {'gray' if channels == 1 else 'RGB'}, {height} x {width}{drawing}."
        if self._network.transform is not None:
            return f"Images are prepared by the transform of the network, {describe_origin(self._network.backbone)}."
        resize = self._config.images.resize or round(height * 256 / 224)
        return f"Images are RGB: resize the short side to {resize} (bilinear), then crop the center {height} x {width}."

    def decode(self, data: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
        """Decode the bytes of an image file. Error messages refer to the file by `name`."""
        transform = None if self._arrays is not None else self._transform
        draft = transform.draft if isinstance(transform, Pipeline) else None
        return decode_image(data, name, draft=draft, max_pixels=max_pixels)

    def prepare(self, image: Image.Image) -> tuple[Tensor, Image.Image]:
        """Return the network's input [C, H, W] for an image, and a preview.

        If the run was trained on image files, the preview shows the whole image. If it was trained on arrays, the
        preview shows the converted array, with drawings in black on white.
        """
        if self._arrays is None:
            image = image.convert("RGB")
            return self._transform(image), ImageOps.contain(image, (PREVIEW_SIDE, PREVIEW_SIDE))
        pixels = convert_image(image, self.array_shape, drawings=self.are_drawings)
        return self.prepare_array(pixels), Image.fromarray(255 - pixels if self.are_drawings else pixels)

    def prepare_array(self, pixels: Array) -> Tensor:
        """Return the network's input [C, H, W] for an image array of the same shape as those of the run's data."""
        single = Manifest(labels=np.zeros(1, np.int64), classes=("",), split=np.array(["test"]), pixels=pixels[None])
        return prepare(self._config, single, self._network).loader().dataset.fetch([0])[0]
