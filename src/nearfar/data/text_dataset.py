"""A dataset of texts, which are tokenized once, when the dataset is created."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nearfar.data.manifest import Manifest
from nearfar.models.tokenizer import TextTokenizer, pad_tokens


class TextDataset:
    """Dataset of tokenized texts. A batch has shape [B, L], where L is the number of tokens of its longest text.

    Shorter texts are padded with -1.

    Args:
        manifest: A manifest of texts.
        tokenizer: The tokenizer of the network.
        max_tokens: Maximum number of tokens of a text. Longer texts are cut.

    Attributes:
        cut: Number of texts that have `max_tokens` tokens and were therefore probably cut.
    """

    def __init__(self, manifest: Manifest, tokenizer: TextTokenizer, *, max_tokens: int) -> None:
        if manifest.texts is None:
            raise ValueError(f"manifest must contain texts, got {manifest!r}")
        self.labels = torch.tensor(manifest.targets)
        self.skipped: dict[int, str] = {}
        ids = tokenizer.encode(manifest.texts, max_tokens=max_tokens)
        lengths = np.array([len(each) for each in ids])
        self.cut = int((lengths >= max_tokens).sum())
        # use one array for all texts, because one array per text would take several times the memory
        self._ends = np.cumsum(lengths)
        self._tokens = np.concatenate(ids)

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, indices: Sequence[int] | Tensor, *, epoch: int = 0, train: bool = False) -> Tensor:
        """Return the tokens of the rows `indices`, int64 [B, L]."""
        rows = np.asarray(indices, dtype=np.int64)
        parts = [self._tokens[self._ends[row - 1] if row else 0 : self._ends[row]] for row in rows.tolist()]
        return torch.from_numpy(pad_tokens(parts))
