"""Convert texts to tokens with the tokenizer of a network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import NearfarError, install_hint

Ids = NDArray[np.int32]
PADDING = -1  # We do not use the padding token of the network, because it can also occur in a text.
ALTERNATIVES = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")


class TextTokenizer:
    """Tokenizer from the tokenizers library. The attribute `json` is its complete definition.

    Args:
        json: The content of a tokenizer.json file.
    """

    def __init__(self, json: str) -> None:
        library = _import("tokenizers")
        self._tokenizer: Any = library.Tokenizer.from_str(json)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.json: str = self._tokenizer.to_str()

    @classmethod
    def from_directory(cls, folder: Path) -> TextTokenizer:
        """Load the tokenizer in the directory of a model.

        Raises:
            NearfarError: If the directory has no tokenizer, or if its file is damaged.
        """
        path = folder / "tokenizer.json"
        try:
            if path.is_file():
                return cls(path.read_text(encoding="utf-8"))
            if any((folder / name).is_file() for name in ALTERNATIVES):
                loaded = _import("transformers").AutoTokenizer.from_pretrained(folder, local_files_only=True)
                return cls(loaded.backend_tokenizer.to_str())
        except NearfarError:
            raise
        except Exception as error:  # the libraries raise many types of exception
            raise NearfarError(f"the tokenizer in {folder} cannot be read ({error})") from None
        raise NearfarError(
            f"{folder} has no tokenizer: copy the tokenizer.json of the model there, or save it with "
            "AutoTokenizer.from_pretrained(NAME).save_pretrained(DIRECTORY)"
        )

    def encode(self, texts: Sequence[str], *, max_tokens: int) -> list[Ids]:
        """Return at most `max_tokens` tokens of each text, including special tokens."""
        # texts may contain lone surrogates, which the library cannot encode
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        self._tokenizer.enable_truncation(max_tokens)
        encoded = self._tokenizer.encode_batch(clean)
        return [np.array(each.ids, dtype=np.int32) for each in encoded]

    def batch(self, texts: Sequence[str], *, max_tokens: int) -> NDArray[np.int64]:
        """Return the tokens of texts as an array [B, L], padded with `PADDING`."""
        return pad_tokens(self.encode(texts, max_tokens=max_tokens))


def pad_tokens(ids: Sequence[Ids]) -> NDArray[np.int64]:
    """Return sequences of tokens as an array [B, L], padded with `PADDING`. L is at least 1.

    >>> pad_tokens([np.array([5, 6], np.int32), np.array([7], np.int32)]).tolist()
    [[5, 6], [7, -1]]
    """
    length = max((len(each) for each in ids), default=1)
    padded = np.full((len(ids), max(1, length)), PADDING, dtype=np.int64)
    for row, each in zip(padded, ids, strict=True):
        row[: len(each)] = each
    return padded


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise NearfarError(f"texts need the package {name} ({error}): {install_hint('text')}") from None
