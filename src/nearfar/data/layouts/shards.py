"""Tar shards as WebDataset writes them, with `key.jpg` next to `key.cls` or `key.json`. Nothing is unpacked."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.items import Items
from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.layouts.member_names import check_member_count, why_name_refused, why_size_refused
from nearfar.data.layouts.paths import is_image
from nearfar.data.manifest import SPLITS, Manifest, number_labels
from nearfar.errors import NearfarError
from nearfar.formatting import counted

LABELS = (".cls", ".json")
PATTERN = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST_RECOGNIZED = 20  # number of members that `_is_shards` reads
MOST_SHARDS = 100_000


def expand_pattern(source: str) -> list[str]:
    """Return the names that a pattern such as data-{000..123}.tar stands for. Any other name is returned as it is.

    >>> expand_pattern("a-{08..10}.tar")
    ['a-08.tar', 'a-09.tar', 'a-10.tar']
    """
    match = PATTERN.search(source)
    if match is None:
        return [source]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < MOST_SHARDS:
        raise NearfarError(f"{source}: the pattern {match[0]} must ascend and give at most {MOST_SHARDS:,} shards")
    width = len(match[1])
    return [f"{source[: match.start()]}{number:0{width}}{source[match.end() :]}" for number in range(first, last + 1)]


def _find_shards(path: Path) -> list[Path]:
    """Return the shards of a pattern, a folder or a single file, in order."""
    if path.is_dir():
        return sorted(entry for entry in path.iterdir() if entry.suffix.lower() == ".tar" and entry.is_file())
    return [Path(name) for name in expand_pattern(str(path))]


def _is_shards(path: Path) -> bool:
    """Return whether the path is a tar shard or a folder of shards.

    The first members of the file, or of the first .tar file in the folder, must include an image and its label.
    """
    shards = _find_shards(path) if path.is_dir() or path.suffix.lower() == ".tar" else []
    if not shards or not shards[0].is_file():
        return False
    try:
        with tarfile.open(shards[0], "r:") as tar:
            names = [member.name for member in islice(tar, MOST_RECOGNIZED) if member.isreg()]
    except (tarfile.TarError, OSError, EOFError, OverflowError, ValueError):
        return False
    images = {_key(name) for name in names if is_image(name)}
    return bool(images & {_key(name) for name in names if name.lower().endswith(LABELS)})


def _key(name: str) -> str:
    """Return the path of a member up to the first dot in its file name, as in WebDataset."""
    folder, _, last = name.removeprefix("./").rpartition("/")
    return f"{folder}/{last.partition('.')[0]}"


@dataclass
class _Sample:
    key: str
    shard: int
    name: str = ""
    offset: int = 0
    size: int = 0
    values: dict[str, Any] = field(default_factory=dict)


@register("shards", recognizes=_is_shards, order=SPECIFIC - 1)
def open_shards(path: Path, *, label: str | None = None, allow_partial: bool = False) -> Manifest:
    """Open tar shards. The members of a sample follow each other and have the same name up to the first dot.

    A sample is an image and its label. `key.cls` holds the label as text; `key.json` holds a JSON object with the
    label. One pass over the headers finds the position of each image, and images are read when they are needed. If
    any JSON object has a key `split`, these keys define the split, and samples without the key are for training.
    Otherwise the first half of the classes is for training and the other half for testing.

    Args:
        path: A shard, a folder of shards, or a pattern such as data-{000..123}.tar.
        label: Key of the label in the JSON object, by default "label".
        allow_partial: If True, samples without an image or a label are skipped, and the `notes` of the manifest
            say how many. Otherwise they raise an error.
    """
    files = _find_shards(path)
    absent = [file for file in files if not file.is_file()]
    if absent or not files:
        raise NearfarError(f"{path}: {f'there is no shard {absent[0]}' if absent else 'the folder has no .tar files'}")
    samples: list[_Sample] = []
    skipped: list[str] = []
    for number, file in enumerate(files):
        for sample in _read_headers(file, number, label or "label"):
            problem = _find_problem(sample, label or "label")
            if not problem:
                samples.append(sample)
            elif allow_partial:
                skipped.append(problem)
            else:
                raise NearfarError(f"{file}: {problem}: complete the shard, or set allow_partial to skip the sample")
    if not samples:
        raise NearfarError(f"{path} has no samples with an image and a label")
    check_member_count(path, len(samples))
    labels, classes = number_labels([str(sample.values["label"]) for sample in samples])
    source = _Members(files, samples)
    manifest = Manifest(
        labels=labels,
        classes=classes,
        split=np.array([sample.values.get("split", "train") for sample in samples]),
        items=Items(source, np.arange(len(samples)), are_images=True, files=tuple(files)),
        paths=tuple(f"{files[sample.shard].name}/{sample.name}" for sample in samples),
        source=path.name,
        notes=(f"skipped {counted(len(skipped), 'sample')}, the first: {skipped[0]}",) if skipped else (),
    )
    has_split = any("split" in sample.values for sample in samples)
    return manifest if has_split else manifest.split_by_class_order()


def _read_headers(file: Path, shard: int, label: str) -> Iterator[_Sample]:
    """Yield the samples of a shard. Only the contents of .cls and .json members are read."""
    sample: _Sample | None = None
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                if member.isdir():
                    continue
                reason = why_name_refused(member.name) or why_size_refused(member.size)
                if not member.isreg() or member.issparse() or reason:
                    raise NearfarError(
                        f"{file}: {member.name!r} {reason or 'is not a regular file'}: write the shard again without it"
                    )
                key = _key(member.name)
                if sample is None or sample.key != key:
                    if sample is not None:
                        yield sample
                    sample = _Sample(key, shard)
                if is_image(member.name):
                    sample.name = member.name.removeprefix("./")
                    sample.offset, sample.size = member.offset_data, member.size
                elif member.name.lower().endswith(LABELS):
                    content = tar.extractfile(member)
                    assert content is not None
                    sample.values |= _parse(content.read(), member.name, file, label)
    except (tarfile.TarError, OSError, EOFError, OverflowError, ValueError) as error:
        raise NearfarError(f"{file} is not a readable tar archive ({error}): create or copy it again") from error
    if sample is not None:
        yield sample


def _parse(data: bytes, name: str, file: Path, label: str) -> dict[str, Any]:
    """Return the label of a .cls or .json member, and its split if it has one."""
    try:
        text = data.decode("utf-8")
        if name.lower().endswith(".cls"):
            return {"label": text.strip()}
        tree = json.loads(text)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise NearfarError(f"{file}: {name} cannot be read ({error})") from None
    if not isinstance(tree, dict):
        raise NearfarError(f"{file}: {name} must hold a JSON object, got {type(tree).__name__}")
    values = {"label": tree[label]} if label in tree else {}
    return values | ({"split": tree["split"]} if tree.get("split") in SPLITS else {})


def _find_problem(sample: _Sample, label: str) -> str:
    if not sample.name:
        return f"the sample {sample.key} has no image"
    value = sample.values.get("label")
    if value is None or value == "":
        return f"the sample {sample.key} has no label ({label!r} in .json, or .cls)"
    if not isinstance(value, str | int) or isinstance(value, bool):
        return f"the label of {sample.key} must be a string or an integer, got {type(value).__name__}"
    return ""


class _Members:
    """The bytes of the images in shards. Each read opens its shard, so processes and threads can share the object."""

    def __init__(self, files: list[Path], samples: list[_Sample]) -> None:
        self.files = files
        self.places = np.array([(sample.shard, sample.offset, sample.size) for sample in samples], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, row: int) -> bytes:
        shard, offset, size = self.places[row].tolist()
        try:
            with open(self.files[shard], "rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise NearfarError(f"{self.files[shard]} cannot be read ({error.strerror}): check the path") from error
        if len(data) != size:
            raise NearfarError(f"{self.files[shard]} is truncated: copy it again")
        return data
