"""Wrong labels on purpose, with the truth kept: symmetric noise and the small clusters of PRISM.

Only rows of the train split change. The same manifest, rate, kind and seed give the same noise.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearfar.data.manifest import Array, Ints, Manifest
from nearfar.errors import NearfarError
from nearfar.files import atomic
from nearfar.validation import check_choice

NoiseKind = Literal["symmetric", "small-cluster"]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class NoiseRecord:
    """What was done: `true_labels` [N] for every row; `wrong` [N] says where the noisy label differs."""

    kind: str
    rate: float
    seed: int
    true_labels: Ints
    wrong: Mask

    @property
    def share(self) -> float:
        """Wrong labels as a share of all rows of the record (train and test)."""
        return float(self.wrong.mean())

    def save(self, path: Path) -> None:
        """JSON: kind, rate, seed, the wrong rows and their true labels; whole or not at all."""
        rows = np.flatnonzero(self.wrong)
        known = {"kind": self.kind, "rate": self.rate, "seed": self.seed, "samples": len(self.wrong)}
        text = json.dumps({**known, "rows": rows.tolist(), "true_labels": self.true_labels[rows].tolist()})
        with atomic(path) as draft:
            draft.write_text(text, "utf-8")

    @classmethod
    def load(cls, path: Path, noisy: Manifest) -> NoiseRecord:
        """The record of a noisy manifest."""
        try:
            known: dict[str, Any] = json.loads(path.read_text("utf-8"))
            if known["samples"] != len(noisy):
                raise NearfarError(f"{path}: is of {known['samples']:,} samples, the data has {len(noisy):,}")
            truth, wrong = noisy.labels.copy(), np.zeros(len(noisy), dtype=np.bool_)
            truth[known["rows"]] = known["true_labels"]
            wrong[known["rows"]] = True
            return cls(known["kind"], known["rate"], known["seed"], truth, wrong)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise NearfarError(f"{path}: is not a readable noise record ({error})") from error


def round_half_up(rate: float, count: int) -> int:
    """rate * count to the nearest integer, halves up, in decimal: 0.29 * 50 is 14.5, which floats make 14.499...

    >>> round_half_up(0.29, 50), round_half_up(0.1, 5), round_half_up(0.1, 4)
    (15, 1, 0)
    """
    return int((Decimal(str(rate)) * count).to_integral_value(ROUND_HALF_UP))


def add_label_noise(
    manifest: Manifest,
    rate: float,
    *,
    seed: int = 0,
    kind: NoiseKind = "symmetric",
    features: ArrayLike | None = None,
) -> tuple[Manifest, NoiseRecord]:
    """The manifest with wrong labels in its train split, and the record of the truth.

    - "symmetric" (BSPML section 4.3): in every train class round(rate * size) samples, halves up, drawn without
      replacement, each get the label of another train class, uniformly.
    - "small-cluster" (PRISM, Liu et al., CVPR 2021): round(rate * classes) random train classes are dissolved. Each is
      cut by k-means into half as many clusters as it has samples, and each cluster is given whole to a random class
      that remains. It needs vectors: the manifest's features or pixels, or `features` [N, d]. Half as many clusters
      is the paper's from memory (not read again); what we read of its released CUB lists is consistent with it.

    At least two train classes are needed (for small clusters one must remain).
    """
    check_choice("kind", kind, ("symmetric", "small-cluster"))
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be at least 0 and below 1, got {rate}")
    train = manifest.rows("train")
    classes = np.unique(manifest.labels[train])
    if len(classes) < 2 and rate > 0:
        raise NearfarError(f"{manifest.source}: label noise needs at least 2 train classes, got {len(classes)}")
    rng = np.random.default_rng(seed)
    labels = manifest.labels.copy()
    members = [train[manifest.labels[train] == c] for c in classes.tolist()]
    if kind == "symmetric":
        _symmetric(labels, members, classes, rate, rng)
    else:
        _small_clusters(labels, members, classes, rate, rng, _vectors(manifest, features))
    wrong = labels != manifest.labels
    note = f"{kind} label noise, rate {rate}, seed {seed}: {int(wrong.sum()):,} of {len(train):,} train labels wrong"
    return manifest.with_labels(labels, note), NoiseRecord(kind, rate, seed, manifest.labels, wrong)


def _symmetric(labels: Ints, members: list[Ints], classes: Ints, rate: float, rng: np.random.Generator) -> None:
    for own, rows in enumerate(members):
        chosen = rng.choice(rows, round_half_up(rate, len(rows)), replace=False)
        # one of the C - 1 others: numbers from the own class on move up by one
        other = rng.integers(len(classes) - 1, size=len(chosen))
        labels[chosen] = classes[other + (other >= own)]


def _small_clusters(
    labels: Ints, members: list[Ints], classes: Ints, rate: float, rng: np.random.Generator, vectors: Array
) -> None:
    from nearfar.metrics.kmeans import kmeans

    count = min(round_half_up(rate, len(classes)), len(classes) - 1)
    dissolved = rng.choice(len(classes), count, replace=False)
    remaining = np.delete(classes, dissolved)
    for own in dissolved.tolist():
        rows = members[own]
        clusters = max(1, len(rows) // 2)
        points = np.ascontiguousarray(vectors[rows].reshape(len(rows), -1), dtype=np.float32)
        cluster = kmeans(points, clusters, seed=int(rng.integers(2**31)))
        # k-means leaves no gap in meaning, but numbers may be unused: draw for every possible one
        target = rng.choice(remaining, max(clusters, int(cluster.max()) + 1))
        labels[rows] = target[cluster]


def _vectors(manifest: Manifest, features: ArrayLike | None) -> Array:
    found = manifest.features if manifest.features is not None else manifest.pixels
    vectors = found if features is None else np.asarray(features)
    if vectors is None:
        raise NearfarError(
            f"{manifest.source}: small-cluster noise needs vectors of the pictures: pass features=[N, d]"
        )
    if len(vectors) != len(manifest):
        raise ValueError(f"features must have {len(manifest)} rows, got {len(vectors)}")
    return vectors


def save_prism_lists(noisy: Manifest, record: NoiseRecord, folder: Path, name: str) -> tuple[Path, Path]:
    """PRISM's two lists of `path,class number` without a header: all train rows with their noisy labels
    (`NAME_0.2noised_train.csv`), and of these only the ones whose label is right (`NAME_0.2noised_cleaned_train.csv`).
    """
    if noisy.paths is None:
        raise NearfarError(f"{noisy.source}: has no paths to list")
    stem = f"{name}_{record.rate:g}{'smallcluster' if record.kind == 'small-cluster' else ''}noised"
    train = noisy.rows("train")
    files = folder / f"{stem}_train.csv", folder / f"{stem}_cleaned_train.csv"
    for file, rows in zip(files, (train, train[~record.wrong[train]]), strict=True):
        with atomic(file) as draft, open(draft, "w", encoding="utf-8", errors="surrogateescape", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows(
                (noisy.paths[i], int(noisy.labels[i])) for i in rows.tolist()
            )
    return files


def apply_prism_lists(manifest: Manifest, noised: Path) -> tuple[Manifest, NoiseRecord]:
    """The noise of a released PRISM list on our copy of the data: rows are matched by the end of their paths.

    Class numbers of a list are its own; a number means the class that most of its rows truly have. Rows that no
    line names, and lines that no row has, are an error (a released list is of the whole train split).
    """
    lines = _read_list(noised)
    train = manifest.rows("train")
    row_of = _match(manifest, train, [path for path, _ in lines], noised)
    numbers = np.array([number for _, number in lines])
    labels = manifest.labels.copy()
    for number in np.unique(numbers).tolist():
        rows = row_of[numbers == number]
        labels[rows] = np.bincount(manifest.labels[rows]).argmax()
    wrong = labels != manifest.labels
    kind = "small-cluster" if "smallcluster" in noised.name else "symmetric"
    rate = float(wrong[train].mean())
    note = f"label noise of {noised.name}: {int(wrong.sum()):,} of {len(train):,} train labels wrong"
    return manifest.with_labels(labels, note), NoiseRecord(kind, rate, -1, manifest.labels, wrong)


def _read_list(path: Path) -> list[tuple[str, int]]:
    try:
        rows = list(csv.reader(path.read_text("utf-8", "surrogateescape").splitlines()))
        return [(row[0], int(row[1])) for row in rows if row]
    except (OSError, ValueError, IndexError) as error:
        raise NearfarError(f"{path}: is not a list of path,class number ({error})") from error


def _match(manifest: Manifest, train: Ints, listed: list[str], file: Path) -> Ints:
    if manifest.paths is None:
        raise NearfarError(f"{manifest.source}: has no paths to match with {file}")

    def tail(path: str) -> str:
        return "/".join(path.replace("\\", "/").split("/")[-2:])

    row_of = {tail(manifest.paths[row]): row for row in train.tolist()}
    unknown = next((path for path in listed if tail(path) not in row_of), None)
    if unknown is not None:
        raise NearfarError(f"{file}: {unknown} is not in the train split of {manifest.source}")
    found = np.array([row_of[tail(path)] for path in listed])
    if len(np.unique(found)) != len(train) or len(found) != len(train):
        raise NearfarError(f"{file}: lists {len(found):,} pictures, the train split has {len(train):,}")
    return found
