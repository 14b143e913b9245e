"""Where the samples of an index come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A range of ids in an index, and the dataset that their samples come from.

    Attributes:
        source: The name or path of the dataset, or "" for the dataset of the run itself.
        first: The id of the first row of the dataset; row i has the id `first` + i.
        rows: Number of rows of the dataset.
        fingerprint: The fingerprint of the dataset at the time it was indexed.
        root: The absolute path of the folder or archive of the image files, or "" if the samples are not image files.
    """

    source: str
    first: int
    rows: int
    fingerprint: str
    root: str = ""
