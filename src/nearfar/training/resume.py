"""A run that goes on has the data and the settings that it began with."""

from __future__ import annotations

from dataclasses import replace

from nearfar.config.schema import Config, neutral_settings
from nearfar.errors import NearfarError
from nearfar.formatting import flatten


def with_fingerprint(config: Config, fingerprint: str) -> Config:
    """The configuration with the fingerprint of the data; where it names another one, an error."""
    known = config.data.fingerprint
    if known is not None and known != fingerprint:
        raise NearfarError(
            f"{config.data.source}: is not the data that the configuration names, files, classes or split have changed "
            f"(fingerprint {fingerprint[:12]}, expected {known[:12]}); set data.fingerprint=null to train on it anyway"
        )
    return replace(config, data=replace(config.data, fingerprint=fingerprint))


def same_settings(config: Config, before: Config) -> Config:
    """The configuration of the run that is there; another one now would make a run that no config describes."""
    ours, theirs = flatten(config.to_dict()), flatten(before.to_dict())
    changed = [key for key in ours if ours[key] != theirs.get(key) and key not in neutral_settings()]
    if changed:
        key = changed[0]
        raise NearfarError(
            f"--resume goes on with the same settings, but {key} is {ours[key]!r} now and was {theirs.get(key)!r}: "
            "leave the settings out, or start another run"
        )
    return config
