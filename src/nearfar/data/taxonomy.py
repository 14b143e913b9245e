"""The ancestors of classes, such as the genus and the family of a species, or the category of a product.

The ancestors are read from additional columns of a table, or from a taxonomy file, a CSV with one row per class:

    label,genus,family
    lion,panthera,felidae
    wolf,canis,canidae

After `label`, the columns go from the parent to the root. An ancestor is identified by its whole path to the root, so
two families may have a genus of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nearfar.csv_files import parse_csv, read_text
from nearfar.data.annotations import Annotations
from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError
from nearfar.spelling import suggest
from nearfar.validation import Ints

LABEL = "label"


def number_paths(chains: Sequence[Sequence[str]]) -> Ints:
    """Return ids [n, L] of the ancestors of n classes at L levels.

    At each level, two ancestors have the same id if their whole paths to the root are the same.

    >>> number_paths([["panthera", "cats"], ["felis", "cats"], ["panthera", "plants"]]).tolist()
    [[1, 0], [0, 0], [2, 1]]
    """
    columns = []
    for level in range(len(chains[0])):
        paths = [tuple(chain[level:])[::-1] for chain in chains]
        number = {path: i for i, path in enumerate(sorted(set(paths)))}
        columns.append([number[path] for path in paths])
    return np.array(columns, dtype=np.int64).T


def class_levels(manifest: Manifest) -> Ints | None:
    """Return the ancestors of each class [C, L], or None if the manifest has none. Classes without samples have -1.

    Raises:
        NearfarError: If samples of one class have different ancestors, for example because of label noise.
    """
    levels = None if manifest.annotations is None else manifest.annotations.levels
    if levels is None:
        return None
    table = np.full((len(manifest.classes), levels.shape[1]), -1, dtype=np.int64)
    table[manifest.labels] = levels
    wrong = np.flatnonzero((table[manifest.labels] != levels).any(1))
    if len(wrong):
        name = manifest.classes[manifest.labels[wrong[0]]]
        raise NearfarError(
            f"samples of class {name!r} have different ancestors: data.levels and data.taxonomy need correct labels, "
            "so set data.noise.rate=0"
        )
    return table


def add_levels(manifest: Manifest, table: Path, columns: Mapping[str, list[str]], names: Sequence[str]) -> Manifest:
    """Return the manifest with the ancestors of its classes from the columns of its table.

    Raises:
        NearfarError: If a column is missing, a cell is empty, or a class has different ancestors in different rows.
    """
    if not names:
        return manifest
    for name in names:
        if name not in columns:
            known = ", ".join(columns)
            raise NearfarError(
                f"{table} has no column {name!r} for data.levels (it has {known}){suggest(name, columns)}"
            )
    chains: dict[str, tuple[str, ...]] = {}
    for label, *chain in zip(columns[LABEL], *(columns[name] for name in names), strict=True):
        _add_chain(chains, label, tuple(chain), names, table)
    return _with_chains(manifest, chains, table)


def add_taxonomy(manifest: Manifest, path: Path) -> Manifest:
    """Return the manifest with the ancestors of its classes from a taxonomy file.

    Raises:
        NearfarError: If the file cannot be read, a class or a cell is missing, or a class has different ancestors.
    """
    rows = [row for row in parse_csv(read_text(path), path) if row]
    names = [name.strip() for name in rows[0]] if rows else []
    if len(names) < 2 or names[0] != LABEL:
        raise NearfarError(
            f"{path}: the first column must be {LABEL}, followed by at least one column of ancestors, such as "
            f"{LABEL},genus,family; got {','.join(names)}"
        )
    chains: dict[str, tuple[str, ...]] = {}
    for row in rows[1:]:
        if len(row) != len(names):
            raise NearfarError(f"{path}: the row of {row[0]!r} has {len(row)} cells but there are {len(names)} columns")
        _add_chain(chains, row[0], tuple(row[1:]), names[1:], path)
    return _with_chains(manifest, chains, path)


def _add_chain(
    chains: dict[str, tuple[str, ...]], label: str, chain: tuple[str, ...], names: Sequence[str], path: Path
) -> None:
    for name, cell, known in zip(names, chain, chains.get(label, chain), strict=True):
        if not cell:
            raise NearfarError(f"{path}: the {name} of class {label!r} is empty")
        if cell != known:
            raise NearfarError(
                f"{path}: class {label!r} has two values of {name}, {known!r} and {cell!r}: correct one of them, or "
                "rename the class in some rows"
            )
    chains[label] = chain


def _with_chains(manifest: Manifest, chains: Mapping[str, tuple[str, ...]], path: Path) -> Manifest:
    used = [manifest.classes[i] for i in np.unique(manifest.labels).tolist()]
    missing = [name for name in used if name not in chains]
    if missing:
        what = f"class {missing[0]!r}" if len(missing) == 1 else f"{len(missing):,} classes, the first: {missing[0]!r}"
        raise NearfarError(f"{path} has no row for {what}: add the missing rows")
    paths = dict(zip(used, number_paths([chains[name] for name in used]), strict=True))
    levels = np.stack([paths[manifest.classes[label]] for label in manifest.labels.tolist()])
    return replace(manifest, annotations=replace(manifest.annotations or Annotations(), levels=levels))
