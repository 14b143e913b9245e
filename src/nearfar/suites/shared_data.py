"""Datasets that suites share, in groups called tracks (tracks.yaml). A suite refers to a dataset by its name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from nearfar.errors import NearfarError
from nearfar.spelling import suggest


@cache
def shared_data() -> dict[str, dict[str, Any]]:
    """Return a dict that maps the names of shared datasets to their `data` entries, as in a suite file.

    The settings of an entry include those of its track (its group of datasets).

    >>> shared_data()["sketches"]["settings"]
    ['steps=400', 'batches.size=64', 'data.validation=0.2']
    """
    text = (files("nearfar.suites") / "tracks.yaml").read_text(encoding="utf-8")
    return {
        entry["name"]: {
            **entry,
            "track": name,
            "differs": track["differs"],
            "settings": [*track["settings"], *entry.get("settings", ())],
            "tune": track.get("tune", {}),
            "tune_settings": track.get("tune_settings", []),
            "tuned": track.get("tuned", True),
        }
        for name, track in yaml.safe_load(text).items()
        for entry in track["data"]
    }


def expand_entry(entry: Any, where: str) -> Any:
    """Return a complete `data` entry.

    `entry` may be the name of a shared dataset, or {use: name, ...} with changes to a shared dataset. The settings of
    `entry` are appended to the shared settings; its other keys replace the shared values. A mapping without `use` is
    returned as it is. `where` names the entry in error messages.

    >>> expand_entry({"use": "cub", "name": "cub-64", "settings": ["model.dim=64"]}, "data[0]")["settings"]
    ['setting=paper', 'data.validation=0', 'benchmark=cub', 'model.dim=64']
    """
    changes = {"use": entry} if isinstance(entry, str) else entry
    if not isinstance(changes, Mapping) or "use" not in changes:
        return entry
    shared, name = shared_data(), str(changes["use"])
    if name not in shared:
        raise NearfarError(
            f"{where}: there is no shared dataset {name!r}{suggest(name, shared)} Known: {', '.join(shared)}"
        )
    base = shared[name]
    rest = {key: value for key, value in changes.items() if key != "use"}
    return {**base, **rest, "settings": [*base["settings"], *(rest.get("settings") or ())]}
