"""Data: every source is opened as a `Manifest`, from which batches of tensors are loaded.

`open_data("my_images")` recognizes the layout of the source and returns a manifest. `create_dataset(manifest)` creates
a dataset that converts the samples to tensors, and `BatchLoader` loads batches from this dataset.
"""

from __future__ import annotations

from nearfar.data.augment import BatchAugment
from nearfar.data.batch_loader import Batch, BatchLoader
from nearfar.data.cache import cache_images
from nearfar.data.datasets import BatchDataset, FeatureDataset, ImageDataset, create_dataset
from nearfar.data.images import ScanResult, decode_image, drop_rows, scan_images
from nearfar.data.layouts import layout_names
from nearfar.data.layouts import register as register_layout
from nearfar.data.layouts.sketches import load_sketches
from nearfar.data.manifest import Manifest
from nearfar.data.noise import NoiseRecord, add_label_noise
from nearfar.data.open import open_data, save_manifest
from nearfar.data.pixel_dataset import PixelDataset
from nearfar.data.python_dataset import as_manifest
from nearfar.data.summary import Summary
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
    "as_manifest",
    "cache_images",
    "create_dataset",
    "decode_image",
    "drop_rows",
    "eval_transform",
    "layout_names",
    "load_sketches",
    "open_data",
    "register_layout",
    "save_manifest",
    "scan_images",
    "train_transform",
]
