"""Label noise with a record of the true labels: symmetric noise, and the small-cluster noise of PRISM.

Only labels of the train split are changed. The same manifest, rate, kind and seed give the same noise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearfar.csv_files import parse_csv, read_text, write_csv
from nearfar.data.manifest import Array, Ints, Manifest
from nearfar.errors import NearfarError
from nearfar.files import atomic
from nearfar.validation import check_choice

NoiseKind = Literal["symmetric", "small-cluster"]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class NoiseRecord:
    """Record of the label noise in a manifest of N samples.

    Attributes:
        kind: "symmetric" or "small-cluster".
        rate: Noise rate.
        seed: Seed of the noise, or -1 if the noise was read from a file (see `apply_prism_lists`).
        true_labels: Label of each sample without noise [N].
        wrong: Mask of the samples whose noisy label is not their true label [N].
    """

    kind: str
    rate: float
    seed: int
    true_labels: Ints
    wrong: Mask

    @property
    def share(self) -> float:
        """Fraction of wrong labels among all N samples, including those of the test split."""
        return float(self.wrong.mean())

    def save(self, path: Path) -> None:
        """Save kind, rate, seed, and the samples with wrong labels (rows and true labels) as JSON, atomically."""
        rows = np.flatnonzero(self.wrong)
        record = {"kind": self.kind, "rate": self.rate, "seed": self.seed, "samples": len(self.wrong)}
        text = json.dumps({**record, "rows": rows.tolist(), "true_labels": self.true_labels[rows].tolist()})
        with atomic(path) as draft:
            draft.write_text(text, "utf-8")

    @classmethod
    def load(cls, path: Path, noisy: Manifest) -> NoiseRecord:
        """Load the record that was saved for the manifest `noisy`."""
        try:
            record: dict[str, Any] = json.loads(path.read_text("utf-8"))
            if record["samples"] != len(noisy):
                raise NearfarError(
                    f"{path} is the record of {record['samples']:,} samples, but the data has {len(noisy):,}: pass the "
                    "data that the record was saved for"
                )
            truth, wrong = noisy.labels.copy(), np.zeros(len(noisy), dtype=np.bool_)
            truth[record["rows"]] = record["true_labels"]
            wrong[record["rows"]] = True
            return cls(record["kind"], record["rate"], record["seed"], truth, wrong)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise NearfarError(f"{path} is not a readable noise record ({error})") from error


def round_half_up(rate: float, count: int) -> int:
    """Round rate * count to the nearest integer, with halves rounded up.

    The product is computed in decimals, because 0.29 * 50 is 14.499... with floats.

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
    """Return the manifest with wrong labels in its train split, and the record of the true labels.

    - "symmetric" (BSPML section 4.3): in every train class, a random fraction `rate` of the samples get the label of
      another train class, which is drawn uniformly for each sample. `round_half_up` gives the number of samples.
    - "small-cluster" (PRISM, Liu et al., CVPR 2021): a random fraction `rate` of the train classes is dissolved.
      K-means splits each dissolved class into half as many clusters as it has samples, and each cluster gets the label
      of a random remaining class. We have not checked this number of clusters against the paper, but it agrees with
      the released lists for CUB.

    Args:
        manifest: Data with at least two train classes.
        rate: Noise rate, at least 0 and below 1.
        seed: Seed of the noise.
        kind: "symmetric" or "small-cluster".
        features: Vectors [N, d] to cluster for "small-cluster". By default, the features or pixels of the manifest.
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
    for position, rows in enumerate(members):
        selected = rng.choice(rows, round_half_up(rate, len(rows)), replace=False)
        # draw from all classes but the current one: adding 1 to numbers at or above `position` skips this class
        other = rng.integers(len(classes) - 1, size=len(selected))
        labels[selected] = classes[other + (other >= position)]


def _small_clusters(
    labels: Ints, members: list[Ints], classes: Ints, rate: float, rng: np.random.Generator, vectors: Array
) -> None:
    from nearfar.metrics.kmeans import kmeans

    count = min(round_half_up(rate, len(classes)), len(classes) - 1)
    dissolved = rng.choice(len(classes), count, replace=False)
    remaining = np.delete(classes, dissolved)
    for position in dissolved.tolist():
        rows = members[position]
        clusters = max(1, len(rows) // 2)
        points = np.ascontiguousarray(vectors[rows].reshape(len(rows), -1), dtype=np.float32)
        cluster = kmeans(points, clusters, seed=int(rng.integers(2**31)))
        # a class is drawn for every possible cluster number, although some numbers may be unused
        target = rng.choice(remaining, max(clusters, int(cluster.max()) + 1))
        labels[rows] = target[cluster]


def _vectors(manifest: Manifest, features: ArrayLike | None) -> Array:
    array = manifest.features if manifest.features is not None else manifest.pixels
    vectors = array if features is None else np.asarray(features)
    if vectors is None:
        raise NearfarError(
            f"{manifest.source}: small-cluster noise needs feature vectors of the samples: pass features=[N, d] to "
            "add_label_noise, or use data that consists of feature vectors"
        )
    if len(vectors) != len(manifest):
        raise ValueError(f"features must have {len(manifest)} rows, got {len(vectors)}")
    return vectors


def save_prism_lists(noisy: Manifest, record: NoiseRecord, folder: Path, name: str) -> tuple[Path, Path]:
    """Save noisy labels as two PRISM lists, and return their paths. Each line of a list is `path,class number`.

    For symmetric noise with rate 0.2, `NAME_0.2noised_train.csv` lists all train samples with their noisy labels, and
    `NAME_0.2noised_cleaned_train.csv` lists those whose label is correct. For small-cluster noise, `noised` in these
    names is replaced by `smallclusternoised`.
    """
    if noisy.paths is None:
        raise NearfarError(f"{noisy.source} has no paths to list: use a dataset whose samples have paths")
    stem = f"{name}_{record.rate:g}{'smallcluster' if record.kind == 'small-cluster' else ''}noised"
    train = noisy.rows("train")
    files = folder / f"{stem}_train.csv", folder / f"{stem}_cleaned_train.csv"
    for file, rows in zip(files, (train, train[~record.wrong[train]]), strict=True):
        write_csv(file, ((noisy.paths[i], int(noisy.labels[i])) for i in rows.tolist()))
    return files


def apply_prism_lists(manifest: Manifest, noised: Path) -> tuple[Manifest, NoiseRecord]:
    """Return the manifest with the noisy labels of a released PRISM list, and the record of the true labels.

    Samples are matched by the last two parts of their paths, and the list must contain exactly the train split. The
    class numbers in the list may differ from those of the manifest: a number is mapped to the true class that is most
    frequent among its samples.
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
    note = f"label noise from {noised.name}: {int(wrong.sum()):,} of {len(train):,} train labels wrong"
    return manifest.with_labels(labels, note), NoiseRecord(kind, rate, -1, manifest.labels, wrong)


def _read_list(path: Path) -> list[tuple[str, int]]:
    try:
        return [(row[0], int(row[1])) for row in parse_csv(read_text(path), path) if row]
    except (ValueError, IndexError) as error:
        raise NearfarError(f"{path} is not a list with lines `path,class number` ({error})") from error


def _match(manifest: Manifest, train: Ints, listed: list[str], file: Path) -> Ints:
    if manifest.paths is None:
        raise NearfarError(f"{manifest.source} has no paths to match with {file}: use a dataset of image files")

    def tail(path: str) -> str:
        return "/".join(path.replace("\\", "/").split("/")[-2:])

    row_of = {tail(manifest.paths[row]): row for row in train.tolist()}
    unknown = next((path for path in listed if tail(path) not in row_of), None)
    if unknown is not None:
        raise NearfarError(
            f"{file}: {unknown} is not in the train split of {manifest.source}: use the list for this dataset"
        )
    rows = np.array([row_of[tail(path)] for path in listed])
    if len(np.unique(rows)) != len(train) or len(rows) != len(train):
        raise NearfarError(
            f"{file} lists {len(rows):,} images, but the train split has {len(train):,}: use the list for this dataset"
        )
    return rows
