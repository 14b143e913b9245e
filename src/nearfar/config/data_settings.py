"""The settings under `data`: what to train on."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.config.setting import option, section

MOST_THREADS = 1024


@dataclass(frozen=True)
class Noise:
    """Label noise that is added to measure robustness, as in section 4.3 of the BSPML paper (arXiv 2211.11751)."""

    rate: float = option(
        0.0,
        "Fraction of the training samples (symmetric) or of the training classes (small-cluster) that get wrong "
        "labels.",
        least=0,
        below=1,
    )
    kind: str = option(
        "symmetric",
        "symmetric: random samples get a wrong label. small-cluster: clusters of similar samples get the same wrong "
        "label; only for feature vectors and image arrays.",
        choices=("symmetric", "small-cluster"),
    )
    seed: int | None = option(None, "Seed of the noise; null uses the seed of the run.")


@dataclass(frozen=True)
class Data:
    """What to train on."""

    source: str = option(
        "sketches",
        "A folder with one subfolder per class, a tar or zip archive of such a folder, a CSV, TSV, JSONL or Parquet "
        "table, tar shards, an .npz or .npy file, the folder of a benchmark, or sketches (built-in drawings).",
    )
    split: str = option(
        "auto",
        "auto: use the split that the data defines, or else train on the first half of the classes. class-order: "
        "always train on the first half of the classes. all: train on all samples, without a test split.",
        choices=("auto", "class-order", "all"),
    )
    root: str | None = option(
        None, "Folder or archive that the image paths of a table are relative to; null is the folder of the table."
    )
    labels: str | None = option(
        None, "File with the labels of an .npy file of data; null looks for a labels file next to the data."
    )
    text: str | None = option(
        None, "Column of a table that holds the texts; null is `text`, unless the table has a column `path`."
    )
    label: str | None = option(None, "Column of a table that holds the labels; null is `label`.")
    image: str | None = option(
        None, "Column of a Parquet table that holds image files as bytes; null is `image`, if it holds bytes."
    )
    separator: str | None = option(
        None, "Character that separates several labels of a sample, e.g. '|'; null: each sample has one label."
    )
    group: str | None = option(
        None, "Column with groups: the ranking of a query leaves out samples of its group; null: no groups."
    )
    camera: str | None = option(
        None,
        "Column with cameras: the ranking of a query leaves out samples that have both its class and its camera; null: "
        "no cameras.",
    )
    levels: tuple[str, ...] = option(
        (), "Columns with the ancestors of the class, from the parent to the root, e.g. [genus, family]; []: none."
    )
    taxonomy: str | None = option(
        None,
        "CSV file with the column `label` and the ancestors of each class, from the parent to the root; null: none.",
    )
    allow_partial: bool = option(
        False, "Skip missing image files and refused archive members, and accept an incomplete benchmark; false: error."
    )
    validation: float = option(
        0.0,
        "Fraction of the training classes held out to choose the best epoch; 0 holds out none. If the data defines a "
        "val split, its samples are held out as well.",
        least=0,
        below=1,
    )
    validation_seed: int = option(0, "Seed that chooses the validation classes.")
    folds: int | None = option(
        None,
        "Number of folds for cross-validation, which are contiguous parts of the sorted training classes; null: none.",
        least=2,
    )
    fold: int | None = option(
        None, "Fold that this run holds out, counted from 0; required with data.folds, otherwise null.", least=0
    )
    train_classes: int | None = option(
        None, "Number of training classes to keep, chosen at random but the same in every run; null: all.", least=2
    )
    merge_classes: int | None = option(
        None,
        "Merge the training classes at random into groups of this many, each of which becomes one class. Validation "
        "and test classes are not merged. null or 1: none.",
        least=1,
    )
    per_class: int | None = option(
        None, "Maximum number of training samples per class, the same ones in every run; null uses all.", least=2
    )
    long_tail: tuple[int, ...] = option(
        (),
        "Two numbers: [5, 60] keeps 5 to 60 training samples per class; the sizes form a geometric sequence. []: all.",
    )
    swap_halves: bool = option(False, "Train on the test split and test on the training split, as the MPA paper did.")
    ignore_roles: bool = option(
        False, "Search within the whole test split, even if the data divides it into queries and a gallery."
    )
    on_error: str = option(
        "raise", "What to do with an image that cannot be read: raise an error, or skip it.", choices=("raise", "skip")
    )
    workers: int = option(0, "Number of processes that load image files.", least=0, most=MOST_THREADS, neutral=True)
    cache: str | None = option(
        None, "Folder where decoded images are cached; null decodes the image files in every epoch."
    )
    cache_size: int | None = option(
        None, "Side of the cached images in pixels; null is the input size * 256 / 224.", above=0
    )
    noise: Noise = section(Noise, "Injected label noise.")
    fingerprint: str | None = option(
        None, "Fingerprint of the data, set by the run. Data with another fingerprint is an error; null: no check."
    )
