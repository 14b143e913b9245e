"""Models: an embedder consists of a backbone, a pooling and a head. `create_embedder` creates it from their names.

>>> import torch
>>> create_embedder("small", dim=64, pooling="gem", channels=1)(torch.zeros(2, 1, 28, 28)).shape
torch.Size([2, 64])
"""

from __future__ import annotations

from nearfar.models.backbones import create, names, register
from nearfar.models.backbones.base import Backbone
from nearfar.models.embedder import Embedder
from nearfar.models.embedder_factory import create_embedder
from nearfar.models.init import compute_half_whitened_pca, init_head_from_pca, init_proxies_from_class_means
from nearfar.models.lora import add_lora, merge_lora
from nearfar.models.weights import WeightFile, find_weights, load_tensors, read_tensors

__all__ = [
    "Backbone",
    "Embedder",
    "WeightFile",
    "add_lora",
    "compute_half_whitened_pca",
    "create",
    "create_embedder",
    "find_weights",
    "init_head_from_pca",
    "init_proxies_from_class_means",
    "load_tensors",
    "merge_lora",
    "names",
    "read_tensors",
    "register",
]
