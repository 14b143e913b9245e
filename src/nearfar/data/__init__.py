"""Data: every source becomes one `Manifest`, and every manifest gives batches of tensors.

`open_data("my_pictures")` recognizes what it is given; `create_dataset(manifest)` gives its samples as tensors and
`Loader` batches of them.
"""

from __future__ import annotations

from nearfar.data.augment import BatchAugment
from nearfar.data.batch_loader import Batch, BatchLoader
from nearfar.data.cache import cache_images
from nearfar.data.datasets import BatchDataset, FeatureDataset, ImageDataset, PixelDataset, create_dataset
from nearfar.data.images import ScanResult, decode_image, drop_rows, scan_images
from nearfar.data.manifest import Manifest, Summary
from nearfar.data.noise import NoiseRecord, add_label_noise
from nearfar.data.open import open_data, save_manifest
from nearfar.data.sketches import load_sketches
from nearfar.data.transforms import eval_transform, train_transform

__all__ = [
    "Batch",
    "BatchAugment",
    "BatchDataset",
    "BatchLoader",
    "FeatureDataset",
    "ImageDataset",
    "Manifest",
    "NoiseRecord",
    "PixelDataset",
    "ScanResult",
    "Summary",
    "add_label_noise",
    "cache_images",
    "create_dataset",
    "decode_image",
    "drop_rows",
    "eval_transform",
    "load_sketches",
    "open_data",
    "save_manifest",
    "scan_images",
    "train_transform",
]
