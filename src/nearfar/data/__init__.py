"""Data: every source becomes one `Manifest`, and every manifest gives batches of tensors.

`open_data("my_pictures")` recognizes what it is given; `open_samples(manifest)` gives its samples as tensors and
`Loader` batches of them.
"""

from __future__ import annotations

from nearfar.data.augment import BatchAugment
from nearfar.data.cache import cached
from nearfar.data.images import Scan, decode, scan, without
from nearfar.data.loader import Batch, Loader
from nearfar.data.manifest import Manifest, Summary
from nearfar.data.noise import NoiseRecord, with_label_noise
from nearfar.data.open import open_data, save
from nearfar.data.samples import FeatureSet, PictureSet, PixelSet, Samples, open_samples
from nearfar.data.sketches import sketches
from nearfar.data.transforms import eval_transform, train_transform

__all__ = [
    "Batch",
    "BatchAugment",
    "FeatureSet",
    "Loader",
    "Manifest",
    "NoiseRecord",
    "PictureSet",
    "PixelSet",
    "Samples",
    "Scan",
    "Summary",
    "cached",
    "decode",
    "eval_transform",
    "open_data",
    "open_samples",
    "save",
    "scan",
    "sketches",
    "train_transform",
    "with_label_noise",
    "without",
]
