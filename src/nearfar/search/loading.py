"""`nearfar.load`: open any model for encoding and search."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from nearfar.model import Model
from nearfar.search.encoder import Encoder
from nearfar.sharing import find_model


def load(
    source: str | Path | Model | nn.Module,
    *,
    model: nn.Module | None = None,
    download: bool = False,
    endpoint: str | None = None,
) -> Encoder:
    """Load a model, to encode images or vectors and to search.

    Args:
        source: A directory (a run, an index, or one that `save_pretrained` wrote), the name of a backbone such as
            "efficientnet-lite0", the id USER/NAME of a model on the Hugging Face hub, a run or your own network.
        model: Your own network, if the directory holds the weights of a network that is not a registered backbone.
        download: Whether a model of the hub may be downloaded. Otherwise it must be in the local cache.
        endpoint: Address of the hub, by default that of huggingface_hub.

    Raises:
        NearfarError: If there is no such model, or if loading it would run code or unpickle a file.

    >>> load("features")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    nearfar.errors.NearfarError: the model features needs data of vectors, which determines its number of inputs
    """
    return Encoder(find_model(source, network=model, download=download, endpoint=endpoint))
