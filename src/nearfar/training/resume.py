"""Check that a resumed run has the data and the settings that it started with."""

from __future__ import annotations

from dataclasses import replace

from nearfar.config.schema import Config, neutral_settings
from nearfar.errors import NearfarError
from nearfar.formatting import flatten


def with_fingerprint(config: Config, fingerprint: str) -> Config:
    """Return the configuration with the fingerprint of the data.

    Raises:
        NearfarError: If the configuration has a different fingerprint.
    """
    expected = config.data.fingerprint
    if expected is not None and expected != fingerprint:
        raise NearfarError(
            f"{config.data.source}: is not the data of the configuration: files, classes or split have changed "
            f"(fingerprint {fingerprint[:12]}, expected {expected[:12]}); set data.fingerprint=null to use it anyway"
        )
    return replace(config, data=replace(config.data, fingerprint=fingerprint))


def check_same_settings(config: Config, original: Config) -> None:
    """Raise an error if a setting that changes the result differs from that of the original run."""
    now, before = flatten(config.to_dict()), flatten(original.to_dict())
    for key, value in now.items():
        if value != before.get(key) and key not in neutral_settings():
            raise NearfarError(
                f"--resume needs the settings of the original run, but {key} is {value!r} now and was "
                f"{before.get(key)!r}: remove the settings, or start another run"
            )
