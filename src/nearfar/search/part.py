"""Where the samples of an index come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """The origin of a range of ids: id `first` + i is row i of the data `source`, for i < `rows`.

    `source` is "" for the data of the run itself.
    """

    source: str
    first: int
    rows: int
    fingerprint: str
