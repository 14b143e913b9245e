"""The id of a run: a hash of everything that decides its scores."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from nearfar.config.schema import Config, neutral_settings
from nearfar.data.layouts.archive import is_archive
from nearfar.errors import NearfarError
from nearfar.files import compute_sha256


def config_id(config: Config, *, files: bool = False) -> str:
    """Return a hash of all settings that decide the scores of a run.

    Arrays are identified by their fingerprint, and image archives and weight files by their content, wherever they are
    stored. The fingerprint of image files does not cover their bytes, so the path of an image folder counts as well.

    Args:
        config: the configuration, with the fingerprint of the data.
        files: whether the data are image files.
    """
    tree = config.to_dict()
    for key in neutral_settings():
        section, _, leaf = key.rpartition(".")
        del (tree[section] if section else tree)[leaf]
    if not tree["batches"]["options"]:
        del tree["batches"]["options"]
    data = tree["data"]
    # settings that were added later are left out at their default, so that earlier runs keep their id
    if data["folds"] is None:
        del data["folds"], data["fold"]
    if data["per_class"] is None:
        del data["per_class"]
    data["cache"] = data["cache"] is not None
    if files:
        data["source"] = _identify_images(data["source"])
    else:
        for key in ("source", "root", "labels"):
            del data[key]
    weights = tree["model"]["pretrained"]
    if isinstance(weights, str):
        tree["model"]["pretrained"] = _hash_weights(Path(weights).expanduser())
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _hash_weights(path: Path) -> str:
    try:
        return compute_sha256(path)
    except OSError as error:
        raise NearfarError(
            f"model.pretrained={path}: cannot be read ({error.strerror}): train that run first, or name another file "
            "(docs/benchmarks/suites.md has the command for suites that start from a trained network)"
        ) from None


def _identify_images(source: str) -> str:
    """Return the hash of an archive; for a folder its path, because reading all images takes too long."""
    path = Path(source).expanduser()
    if not is_archive(path):
        return source
    state = path.stat()
    return _hash_archive(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=16)
def _hash_archive(path: Path, size: int, changed: int) -> str:
    """Hash an archive once; `size` and `changed` are part of the cache key, so that a changed file is hashed again."""
    try:
        return compute_sha256(path)
    except OSError as error:
        raise NearfarError(f"data.source={path}: cannot be read ({error.strerror})") from None
