"""Random input that is mostly invalid: damaged files, nested values, words, settings and arrays."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from nearfar.config.keys import all_settings

Rng = random.Random
NUMBERS = (0, 1, 127, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
ODD = "null true -1 0 1 1.5 1e400 .inf -.inf .nan 0x1f 1_000 0b 2001-99-99 [] {} ' \" , : .. /etc/passwd é"
KNOWN = "train test label path triplet proxy-anchor small features pk ../../etc/passwd [1,2] {a:1} [[tensor]]"
LONG = ("9" * 30, "9" * 4400, "a" * 300, "[" * 500)
STRANGE = ("", " ", "\n", "\x00", "\x1b[31m", "\ud800", "&a [*a]", "!!int x", "!!python/object/apply:os.system [ls]")
WORDS = (*ODD.split(), *KNOWN.split(), *STRANGE)
SECTIONS = ("data", "loss", "batches", "pacing", "model", "images", "optimizer", "schedule", "select", "projection")
OPTIONS = "loss.name loss.margin loss.k pacing.name model.backbone model.head model.pooling data.source data.noise.kind"
MORE = "metrics track recipe setting benchmark seed device compile optimizer.betas images.jitter select.metric"
BATCHES = "batches.size batches.classes batches.per_class batches.rho"
LIMITED = [key for key, each in all_settings().items() if each.limits]
PLACES = (*LIMITED, *SECTIONS, *OPTIONS.split(), *MORE.split(), *BATCHES.split())


def changed(rng: Rng, seeds: Sequence[bytes]) -> bytes:
    """Return the bytes of one of the valid files `seeds` with random damage."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            other = rng.choice(seeds)
            start = rng.randrange(len(other) + 1)
            data[at : at + rng.randrange(64)] = other[start : start + rng.randrange(64)]
        elif kind == 3:
            width = rng.choice((1, 2, 4, 8))
            number = rng.choice(NUMBERS) % (1 << 8 * width)
            data[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
        elif kind == 4:
            data[at:at] = rng.randbytes(rng.randrange(1, 16))
        elif kind == 5:
            del data[at : at + rng.randrange(1, 32)]
        elif kind == 6:
            _other_number(rng, data)
        else:
            data[at:at] = word(rng).encode("utf-8", "surrogatepass")
    return bytes(data)


def _other_number(rng: Rng, data: bytearray) -> None:
    """Replace a number that is written as text, as in JSON and numpy headers, with another one."""
    places = [i for i, byte in enumerate(data[:4096]) if 48 <= byte < 58]
    if places:
        start = end = rng.choice(places)
        while end < len(data) and 48 <= data[end] < 58:
            end += 1
        data[start:end] = str(rng.choice((-1, *NUMBERS, 10**30))).encode()


def tree(rng: Rng, depth: int = 0) -> Any:
    """Return random nested dictionaries, lists and values."""
    kind = rng.randrange(10)
    if kind < 3 and depth < 4:
        return {
            rng.choice((*SECTIONS, "name", "lr", "steps", *WORDS[:3])): tree(rng, depth + 1)
            for _ in range(rng.randrange(4))
        }
    if kind < 5 and depth < 4:
        return [tree(rng, depth + 1) for _ in range(rng.randrange(4))]
    return rng.choice((None, True, -1, 0, 1, 3, 0.5, 1e308, float("inf"), float("nan"), 10**25, word(rng), word(rng)))


def word(rng: Rng) -> str:
    """Return a random word, rarely a very long one."""
    return rng.choice(LONG if rng.random() < 0.02 else WORDS)


def setting(rng: Rng) -> str:
    """Return KEY=VALUE, mostly with a valid key."""
    key = rng.choice(PLACES) if rng.random() < 0.9 else word(rng)
    value = word(rng) if rng.random() < 0.7 else json.dumps(tree(rng))
    return f"{key}{'=' if rng.random() < 0.97 else ''}{value}"


def encoded(kind: str, mode: str = "RGB") -> bytes:
    """Return the bytes of a small image file."""
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((12, 10)).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def zipped(**arrays: Any) -> bytes:
    """Return the bytes of an .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def array(rng: Rng) -> Any:
    """Return an array of any dtype except object, and of any shape."""
    shape = rng.choice(((), (0,), (4,), (4, 3), (4, 0), (4, 2, 2), (4, 2, 2, 3), (1, 1, 1, 1, 1)))
    kind = rng.choice(
        ("<f4", "<f2", "<f8", "<i8", "<u1", "<u8", "?", "<U3", "S3", "<c8", "<M8[s]", "V3", [("a", "<i4")])
    )
    made = np.zeros(shape, kind)
    if made.dtype.kind in "fiu" and made.size and rng.random() < 0.5:
        made.flat[0] = rng.choice((np.nan, np.inf) if made.dtype.kind == "f" else (1, 100))
    return made
