"""Check that a resumed run has the data and the settings that it started with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from nearfar.config.keys import neutral_settings
from nearfar.config.schema import Config
from nearfar.errors import NearfarError
from nearfar.formatting import flatten, settings_lines


def with_fingerprint(config: Config, fingerprint: str) -> Config:
    """Return the configuration with the fingerprint of the data.

    Raises:
        NearfarError: If the configuration has a different fingerprint.
    """
    expected = config.data.fingerprint
    if expected is not None and expected != fingerprint:
        raise NearfarError(
            f"{config.data.source}: not the data of this configuration: files, classes or split have changed "
            f"(fingerprint {fingerprint[:12]}, expected {expected[:12]}); set data.fingerprint=null to use it anyway"
        )
    return replace(config, data=replace(config.data, fingerprint=fingerprint))


def check_same_settings(config: Config, original: Config) -> None:
    """Raise an error if a setting that affects the result differs from the original run."""
    now, before = flatten(config.to_dict()), flatten(original.to_dict())
    for key, value in now.items():
        if value != before.get(key) and key not in neutral_settings():
            raise NearfarError(
                f"--resume needs the settings of the original run, but {key} is {value!r} now and was "
                f"{before.get(key)!r}: remove the changed settings, or start a new run"
            )


def resumed_settings(config: Config) -> dict[str, str]:
    """Return the settings that must not change when a run is resumed, as a dict that maps dotted keys to text."""
    neutral = neutral_settings()
    return {key: value for key, value in settings_lines(config.to_dict()) if key not in neutral}


def check_same_run(
    state: Mapping[str, Any], *, version: int, known: Collection[str], config: Config, data: str
) -> None:
    """Check that a checkpoint has a known format and belongs to these settings and this data.

    Args:
        state: The contents of the checkpoint.
        version: The version of the format that this version of nearfar reads.
        known: The parts that a checkpoint of this version has.
        config: The configuration of the run.
        data: Digest of the training images.

    Raises:
        NearfarError: If something differs. The message names the first difference.
    """
    if state.get("format") != version:
        found = f"format {state['format']!r}" if "format" in state else "no format version"
        raise NearfarError(
            f"the checkpoint has {found}, but this version of nearfar reads format {version}: start a new run with "
            "another --out"
        )
    if unknown := sorted(state.keys() - known):
        raise NearfarError(f"the checkpoint has the unknown part {unknown[0]!r}: update nearfar, or start a new run")
    if missing := sorted(known - state.keys()):
        raise NearfarError(f"the checkpoint has no part {missing[0]!r}: start a new run")
    now = resumed_settings(config)
    # A setting that did not exist when the checkpoint was saved had the effect of its default.
    new = {key: value for key, value in resumed_settings(Config()).items() if key in now}
    before = new | state["settings"]
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise NearfarError(
                f"the checkpoint was saved with {key}={before.get(key)}, but config.yaml has {now.get(key)}: restore "
                "the setting, or start a new run"
            )
    if state["data"] != data:
        raise NearfarError(
            f"the checkpoint was saved with different images: files in {config.data.source} have changed: restore "
            "them, or start a new run"
        )
