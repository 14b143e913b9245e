"""A run that goes on has the data and the settings that it began with."""

from __future__ import annotations

from dataclasses import replace

from nearfar.config.schema import Config
from nearfar.errors import NearfarError
from nearfar.formatting import flatten

# how a run is carried out, which leaves what it comes to alone (but for rounding, by threads, ranks and device)
CARRIED_OUT = ("threads", "device", "log_every", "log_train", "save_every", "shard_proxies", "shard_network")


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
    free = ("data.workers", *CARRIED_OUT)
    changed = [key for key in ours if ours[key] != theirs.get(key) and key not in free]
    if changed:
        key = changed[0]
        raise NearfarError(
            f"--resume goes on with the same settings, but {key} is {ours[key]!r} now and was {theirs.get(key)!r}: "
            "leave the settings out, or start another run"
        )
    return config
