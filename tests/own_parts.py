"""A network and a dataset of a user, each about twenty lines, for the tests that bring their own."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

CLASSES, PER_CLASS, SIDE = 6, 6, 24


class Net(nn.Module):
    """Two convolutions and a linear layer, for gray images of 24 pixels."""

    input_size, channels, mean, std = SIDE, 1, (0.2,), (0.3,)

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()
        )
        self.linear = nn.Linear(16, dim)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(self.convolutions(x).amax((2, 3)))
        return y


class Bars(Dataset[tuple[Tensor, str]]):
    """Images with a bar whose position and length depend on the class."""

    def __len__(self) -> int:
        return CLASSES * PER_CLASS

    def pixels(self, index: int) -> np.ndarray:
        label = index % CLASSES
        image = np.random.default_rng(index).integers(0, 256, (SIDE, SIDE))
        image[3 * label : 3 * label + 4, 2 : 6 + 3 * label] //= 4
        return image.astype(np.uint8)

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        return torch.from_numpy(self.pixels(index))[None] / 255, f"bar {index % CLASSES}"


class BarImages(Bars):
    """The same as Pillow images in dicts, with labels that can be read without the images."""

    classes = tuple(f"bar {label}" for label in range(CLASSES))

    @property
    def targets(self) -> list[int]:
        return [index % CLASSES for index in range(len(self))]

    def __getitem__(self, index: int) -> dict[str, object]:  # type: ignore[override]
        return {"image": Image.fromarray(self.pixels(index)).convert("RGB"), "label": index % CLASSES}


def make_net(channels: int = 3) -> nn.Module:
    """Return a network for images with any number of channels, whose output is a feature map."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(channels, 8, 5, stride=4), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU())
