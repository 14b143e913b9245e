"""The id of a run: a hash of everything that determines its scores."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from nearfar.config.keys import neutral_settings
from nearfar.config.schema import Config
from nearfar.data.layouts.archive import is_archive
from nearfar.errors import NearfarError
from nearfar.files import compute_sha256

# Settings that are left out of the hash if they have their default, so that older runs, made before these settings
# existed, keep their ids.
ADDED_LATER = (
    *("data.folds", "data.fold", "data.per_class", "data.long_tail", "data.swap_halves", "data.ignore_roles"),
    *("data.text", "data.label", "data.image", "data.separator", "data.group", "data.camera"),
    *("data.levels", "data.taxonomy", "data.train_classes", "data.merge_classes"),
    *("model.proxies", "model.train_from", "model.lora", "model.lora_alpha", "model.interpolate"),
    *("model.max_tokens", "model.center", "model.token_dropout", "select.untrained"),
    *("images.train_crop", "model.mirror"),
)


def config_id(config: Config, *, files: bool = False) -> str:
    """Return a hash of all settings that determine the scores of a run.

    For arrays, the fingerprint of the data is hashed; for image archives and weight files, their content. The paths of
    these files do not matter. The fingerprint of an image folder does not cover the content of the image files, so the
    path of the folder is hashed as well.

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
    for key in ADDED_LATER:
        section, _, leaf = key.rpartition(".")
        if tree[section][leaf] in (None, False, []):
            del tree[section][leaf]
    if tree["optimizer"]["layer_decay"] == 1:
        del tree["optimizer"]["layer_decay"]
    if tree["cache"]["activations"] is None:
        del tree["cache"]  # without a cache folder, the other settings of the cache have no effect
    else:
        tree["cache"]["activations"] = True
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
            f"model.pretrained={path}: cannot be read ({error.strerror}): train the run that writes this file, or "
            "choose another file (for suites that start from a trained network, see docs/benchmarks/suites.md)"
        ) from None


def _identify_images(source: str) -> str:
    """Return the hash of an archive, or the path of a folder. Hashing all images in a folder would be too slow."""
    path = Path(source).expanduser()
    if not is_archive(path):
        return source
    state = path.stat()
    return _hash_archive(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=16)
def _hash_archive(path: Path, size: int, changed: int) -> str:
    """Return the hash of an archive. The hash is cached for each path, file size and modification time `changed`."""
    try:
        return compute_sha256(path)
    except OSError as error:
        raise NearfarError(f"data.source={path}: cannot be read ({error.strerror}): check its permissions") from None
