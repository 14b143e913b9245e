"""Hostile requests neither stop the server nor change decisions, and get nothing but the served data."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from nearfar.serve.collection import Collection
from tests.harness.hostile import attack, hostile_requests


@pytest.mark.parametrize("seed", [0, 1])
def test_500_hostile_requests(client: httpx.Client, address: str, collection: Collection, seed: int) -> None:
    canary = secrets.token_hex(16)
    for folder in (collection.run.path, collection.run.path.parent, Path(collection.run.config.data.source).parent):
        (folder / "canary.txt").write_text(canary)
    decisions = collection.run.path / "decisions.csv"
    before = decisions.read_bytes() if decisions.is_file() else None
    known = [canary.encode(), b"root:", (collection.run.path / "config.yaml").read_bytes()[:80]]
    requests = hostile_requests(250, urlsplit(address).netloc, seed=seed)
    outcome = asyncio.run(attack(address, requests, known))
    assert outcome.wrong == []
    assert sum(outcome.statuses.values()) == 250
    assert {400, 403, 404, 405, 421, 422} <= set(outcome.statuses)
    assert client.get("/api/info").json()["samples"] == 120
    assert (decisions.read_bytes() if decisions.is_file() else None) == before


def test_the_same_seed_gives_the_same_requests() -> None:
    one, two, other = (list(hostile_requests(64, "localhost", seed=seed)) for seed in (3, 3, 4))
    assert one == two != other
