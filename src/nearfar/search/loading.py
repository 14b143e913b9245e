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
    """Load a model to encode images, texts or vectors, and to search.

    Args:
        source: A directory (a run, an index, or one that `save_pretrained` wrote), the name of a backbone such as
            "efficientnet-lite0", the id USER/NAME of a model on the Hugging Face Hub, a `Run` or your own network.
        model: Your own network, if the directory holds the weights of a network that is not a registered backbone.
        download: If True, the model may be downloaded from the Hub. Otherwise it must be in the local cache.
        endpoint: Address of the Hub. The default is that of huggingface_hub.

    Raises:
        NearfarError: If there is no such model, or if loading it would run code or unpickle a file.

    >>> load("features")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    nearfar.errors.NearfarError: the backbone 'features' takes its number of input dimensions from the data: use it ...
    """
    return Encoder(find_model(source, network=model, download=download, endpoint=endpoint))
