"""Detect within a few seconds that a time budget is too small, instead of after most of it has been used."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nearfar.advise.candidate import Candidate
from nearfar.advise.data import EMBEDDING_SHARE, TrialData
from nearfar.advise.schedule import TrialCost, needed_seconds, planned_splits, round_sizes
from nearfar.advise.successive_halving import MIN_STEPS, PROBE_STEPS, RESERVE
from nearfar.advise.trial import count_full_steps, run_trial
from nearfar.data import Manifest
from nearfar.errors import NearfarError

FEATURES = {"files": 1280, "text": 384}  # dimension of the embeddings of EfficientNet-Lite0 and all-MiniLM-L6-v2


def check_budget(data: TrialData, candidates: Sequence[Candidate], *, seconds: float) -> None:
    """Time a short trial, and raise an error if the budget is too small for even the shortest useful comparison.

    Image files and texts are replaced by the same number of random vectors, so that the check does not have to wait
    until they are embedded.

    Args:
        data: The samples.
        candidates: The recipes to compare.
        seconds: The time budget.

    Raises:
        NearfarError: If the budget is too small. The message names a budget that is large enough.
    """
    started = time.monotonic()
    embedding = 0.0
    if data.manifest.kind in FEATURES:
        data = replace(data, manifest=_with_random_vectors(data.manifest))
        embedding = EMBEDDING_SHARE
    run_trial(candidates[0], data, steps=1, split=0)  # a warm-up whose time is not used, because it includes imports
    line = run_trial(candidates[0], data, steps=PROBE_STEPS, split=0)
    if "message" in line:
        return  # `run_trials` reports candidates that fail
    step = float(line["step_seconds"])
    cost = TrialCost(max(0.0, float(line["seconds"]) - PROBE_STEPS * step), step)
    sizes = round_sizes(len(candidates))
    trials = [size * splits for size, splits in zip(sizes, planned_splits(len(sizes)), strict=True)]
    full = count_full_steps(candidates[0], data)
    probes = (len(candidates) + 1) * cost.seconds(PROBE_STEPS)
    needed = probes + needed_seconds(cost, trials, min(MIN_STEPS, full), full) / (1 - RESERVE)
    needed = (needed + time.monotonic() - started) / (1 - embedding)
    if needed > seconds:
        raise NearfarError(
            f"{data.source}: --minutes {seconds / 60:g} is too short to compare {len(candidates)} recipes: use "
            f"--minutes {math.ceil(1.1 * needed / 60)}, or fewer --recipes"
        )


def _with_random_vectors(images: Manifest) -> Manifest:
    vectors = np.random.default_rng(0).normal(size=(len(images), FEATURES[images.kind])).astype(np.float32)
    return replace(images, features=vectors, texts=None, root=None, digest="")
