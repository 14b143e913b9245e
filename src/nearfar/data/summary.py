"""Summary of a manifest: the counts that `nearfar data` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearfar.formatting import clean_text, counted

if TYPE_CHECKING:
    from nearfar.data.manifest import Manifest


@dataclass(frozen=True)
class Summary:
    """Counts of the samples and classes of a manifest.

    `splits` maps the name of each split to its numbers of samples and classes. `roles` maps "query" and "gallery" to
    their numbers of samples. `smallest` and `largest` are the name and the number of samples of the smallest and of the
    largest class. `singletons` is the number of classes with a single sample. `shared_classes` is the number of classes
    that are in both train and test. `shape` is the shape of the array of features or pixels, or () for other data.
    """

    source: str
    kind: str
    samples: int
    classes: int
    empty_classes: int
    splits: dict[str, tuple[int, int]]
    roles: dict[str, int]
    smallest: tuple[str, int]
    largest: tuple[str, int]
    singletons: int
    shared_classes: int
    shape: tuple[int, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        kind = "file" if (self.kind, self.samples) == ("files", 1) else self.kind
        kind = counted(self.samples, "text").split()[1] if kind == "text" else kind
        kind = kind if not self.shape else f"{self.kind} of shape {' x '.join(map(str, self.shape[1:]))}"
        lines = [f"{clean_text(self.source) or 'manifest'}: {self.samples:,} {kind}, {_classes(self.classes)}"]
        for name, (samples, classes) in self.splits.items():
            lines.append(f"  {name:6s} {samples:9,} {'sample' if samples == 1 else 'samples'}, {_classes(classes)}")
        if any(self.roles.values()):
            lines.append("  " + ", ".join(f"{role} {n:,}" for role, n in self.roles.items()))
        (smallest, least), (largest, most) = self.smallest, self.largest
        sizes = f"smallest class {clean_text(smallest)} ({least:,}), largest {clean_text(largest)} ({most:,})"
        lines.append(f"  {sizes}" if least < most else f"  every class has {counted(least, 'sample')}")
        if self.singletons:
            verb = "has" if self.singletons == 1 else "have"
            lines.append(f"  {_classes(self.singletons)} {verb} only one sample, which has no positive")
        if self.shared_classes:
            verb = "is" if self.shared_classes == 1 else "are"
            lines.append(
                f"  {_classes(self.shared_classes)} {verb} in both train and test: scores do not measure unseen classes"
            )
        return "\n".join(lines + [f"  note: {clean_text(note)}" for note in self.notes])


def _classes(count: int) -> str:
    return counted(count, "class", "classes")


def summarize(manifest: Manifest) -> Summary:
    """Return the numbers of samples and classes of a manifest."""
    labels, classes, split = manifest.labels, manifest.classes, manifest.split
    counts = np.bincount(labels, minlength=len(classes))
    present = np.flatnonzero(counts)
    smallest = int(present[counts[present].argmin()])
    largest = int(present[counts[present].argmax()])
    array = manifest.pixels if manifest.pixels is not None else manifest.features
    role = manifest.role
    return Summary(
        source=manifest.source,
        kind=manifest.kind,
        samples=len(manifest),
        classes=len(present),
        empty_classes=len(classes) - len(present),
        splits={
            name: (int((split == name).sum()), len(np.unique(labels[split == name])))
            for name in ("train", "val", "test")
            if (split == name).any()
        },
        roles={} if role is None else {name: int((role == name).sum()) for name in ("query", "gallery")},
        smallest=(classes[smallest], int(counts[smallest])),
        largest=(classes[largest], int(counts[largest])),
        singletons=int((counts == 1).sum()),
        shared_classes=len(np.intersect1d(labels[split == "train"], labels[split == "test"])),
        shape=() if array is None else tuple(array.shape),
        notes=manifest.notes,
    )
