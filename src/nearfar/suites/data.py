"""The data that suites share, by track (tracks.yaml), so that a suite names them and says only what is its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from nearfar.errors import NearfarError
from nearfar.validation import nearest


@cache
def shared_data() -> dict[str, dict[str, Any]]:
    """Entries of a suite's `data` by name, with their track, its settings and what differs there from the papers.

    >>> shared_data()["sketches"]["settings"]
    ['steps=400', 'batches.size=64', 'data.validation=0.2']
    """
    text = (files("nearfar.suites") / "tracks.yaml").read_text(encoding="utf-8")
    return {
        each["name"]: {
            **each,
            "track": track,
            "differs": part["differs"],
            "settings": [*part["settings"], *each.get("settings", ())],
            "tune": part.get("tune", {}),
            "tune_settings": part.get("tune_settings", []),
        }
        for track, part in yaml.safe_load(text).items()
        for each in part["data"]
    }


def expanded(entry: Any, where: str) -> Any:
    """An entry of `data` in full: a name, or {use: name, ...} with what differs; its settings come after the shared.

    >>> expanded({"use": "cub", "name": "cub-64", "settings": ["model.dim=64"]}, "data[0]")["settings"]
    ['setting=paper', 'data.validation=0', 'benchmark=cub', 'model.dim=64']
    """
    own = {"use": entry} if isinstance(entry, str) else entry
    if not isinstance(own, Mapping) or "use" not in own:
        return entry
    known = shared_data()
    name = str(own["use"])
    if name not in known:
        raise NearfarError(f"{where}: no shared data {name!r}{nearest(name, known)} Known: {', '.join(known)}")
    base = known[name]
    changes = {key: value for key, value in own.items() if key != "use"}
    return {**base, **changes, "settings": [*base["settings"], *(changes.get("settings") or ())]}
