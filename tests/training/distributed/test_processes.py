"""Training on several processes equals training on one: every recipe, the complete state, and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from nearfar.config import recipes
from nearfar.config.merge import resolve
from nearfar.training.checkpoint import load_state
from nearfar.training.log import read_log
from rank_checks import CHECKS
from rank_runs import Job, run_job, start

SMALL = ["threads=1", "model.dim=6", "untrained=false", "save_every=1000000"]


def apart(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Places where two states differ: doubles by more than 1e-10, floats by 1e-5, everything else at all."""
    if isinstance(one, dict):
        if one.keys() != other.keys():
            yield f"{where}: {sorted(one)} against {sorted(other)}"
        else:
            for key in one:
                yield from apart(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            yield f"{where}: {len(one)} against {len(other)}"
        else:
            for i, (a, b) in enumerate(zip(one, other, strict=True)):
                yield from apart(a, b, f"{where}/{i}")
    elif isinstance(one, Tensor | float):
        a, b = torch.as_tensor(one), torch.as_tensor(other)
        tolerance = {torch.float64: 1e-10, torch.float32: 1e-5}.get(a.dtype, 0)
        if isinstance(one, float):
            tolerance = 1e-6  # scores, which are counts, and what was measured from float32 tables
        if a.shape != b.shape or a.dtype != b.dtype or not torch.allclose(a, b, rtol=tolerance, atol=tolerance):
            far = (a.double() - b.double()).abs().max() if a.shape == b.shape else f"{a.shape} {b.shape}"
            yield f"{where}: {far}"
    elif one != other:
        yield f"{where}: {one!r} against {other!r}"


def state(path: Path, name: str = "state-0") -> Any:
    return load_state(path / f"{name}.safetensors")


def losses(path: Path) -> list[float]:
    return [entry["loss"] for entry in read_log(path / "log.jsonl") if entry["kind"] == "step"]


def recipe_settings(name: str) -> list[str]:
    """Batches that do not split evenly: 15 rows, or 3 classes; PROFS with several cycles, noise for those who mind."""
    batches = recipes.load(name)["batches"]
    settings = ["batches.size=15"] if batches["name"] == "shuffled" else ["batches.classes=3", "batches.size=null"]
    if batches["name"] == "profs":
        settings += ["batches.steps=3"]
    if batches.get("mining"):
        settings += ["batches.fill=true"]
    if name.startswith("l-profs"):
        # distances do not see the bias of the head, so its gradient is rounding alone; Adam, which divides by its size,
        # and the projection term would blow it up, with any number of ranks
        settings += ["optimizer.name=sgd"]
    if recipes.load(name).get("pacing"):
        settings += ["data.noise.rate=0.2"]
    return settings


def recipe_steps(name: str) -> int:
    """Return 12, which is several epochs, or 20 for a method that changes after its third epoch."""
    recipe = recipes.load(name)
    return 20 if "pacing" in recipe or "filter_epoch" in recipe["loss"] else 12


def recipe_job(name: str, source: str, out: Path, **more: Any) -> Job:
    steps, log_every = recipe_steps(name), more.get("steps", 3)
    settings = [f"data.source={source}", f"steps={steps}", f"log_every={log_every}", *SMALL, *recipe_settings(name)]
    config = resolve("features", recipe=name, settings=settings).to_dict()
    return {"config": config, "out": str(out / name), "float64": True, **more}


CACHED = "cached activations"
PARTS = "parts, where ranks would have 3 and 2"
CASES: dict[str, tuple[str, str, list[str]]] = {
    "statistics of the global batch": ("pixels", "proxy-anchor", ["batches.size=15"]),
    PARTS: ("pixels", "supcon", ["batches.name=shuffled", "batches.size=17"]),
    "everything else": (
        "pixels",
        "multi-similarity",
        [
            *("model.freeze_bn=true", "ema=0.9", "data.validation=0.4", "optimizer.clip_norm=1", "optimizer.name=sgd"),
            *("schedule.warm_up_epochs=1", "batches.classes=2", "batches.per_class=3", "untrained=true"),
        ],
    ),
    CACHED: ("pixels", "proxy-anchor", ["batches.size=15", "model.train_from=block2", "model.init=pca"]),
    "split proxies": ("features", "mpa", ["batches.size=15"]),
    "split network": ("pixels", "proxy-anchor", ["batches.size=15", "data.validation=0.4", "micro_batch=30"]),
    "several losses": (
        "features",
        "supcon",
        ["batches.size=15", "loss=[{name: proxy-anchor}, {name: contrastive, weight: 0.5, mine: semi-hard}]"],
    ),
    "picture files and a worker": ("files", "margin", ["model.backbone=small", "model.pretrained=false"]),
}


def case_job(case: str, sources: dict[str, str], out: Path, *, world: int, **more: Any) -> Job:
    kind, recipe, settings = CASES[case]
    settings = [f"data.source={sources[kind]}", "steps=8", "log_every=1", *SMALL, *settings]
    if kind == "files":
        settings += ["data.workers=1", "images.crop=16", "batches.classes=2", "batches.size=null"]
    if case == PARTS:
        settings += ["micro_batch=10" if world == 1 else "micro_batch=4"]  # 5 a rank, because 4 goes into 8 but not 9
    if case.startswith("split") and world > 1:
        settings += ["shard_network=true" if case == "split network" else "shard_proxies=true"]
    if case == CACHED:
        settings += [f"cache.activations={out / 'cache'}", "cache.views=2"]
    config = resolve(kind, recipe=recipe, settings=settings).to_dict()
    wide = "from the start" if case in ("split network", CACHED) else True
    return {"config": config, "out": str(out / case), "float64": wide, **more}


def stops(case: str) -> dict[str, int]:
    """A worker reads ahead, so that the same object cannot go on where it stopped."""
    return {} if CASES[case][0] == "files" else {"stop": 4}


@pytest.fixture
def sources(tmp_path: Path, drawings: str) -> dict[str, str]:
    """8 classes of 12: vectors and drawings; and 4 of 8 picture files."""
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(8), 12)
    rows = (rng.normal(size=(8, 10))[labels] + rng.normal(size=(96, 10))).astype(np.float32)
    np.savez(tmp_path / "vectors.npz", features=rows, labels=labels)
    for i in range(32):
        pixels = (rng.integers(0, 90, (18, 20, 3)) + 40 * (i // 8)).astype(np.uint8)
        path = tmp_path / "pictures" / f"kind {i // 8}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return {"features": str(tmp_path / "vectors.npz"), "pixels": drawings, "files": str(tmp_path / "pictures")}


def equal_runs(world: int, sources: dict[str, str], tmp: Path, names: list[str]) -> list[str]:
    """What differs between one process and `world` ranks, over all recipes and cases; empty where nothing does."""
    vectors = sources["features"]
    one, many, back, on = (tmp / name for name in ("one", "many", "many-one", "one-many"))
    for name in names:
        run_job(recipe_job(name, vectors, one, stop=recipe_steps(name) * 3 // 4))
        run_job(recipe_job(name, vectors, tmp / "one32", steps=1, float64=False))
    cases = [case for case in CASES if world == 2 or case not in ("split proxies", PARTS)]
    for case in cases:
        run_job(case_job(case, sources, one, world=1, **stops(case)))
    jobs = [recipe_job(name, vectors, many, stop=recipe_steps(name) * 3 // 4) for name in names]
    jobs += [recipe_job(name, vectors, on, begin=str(one / name / "stopped.safetensors")) for name in names]
    jobs += [recipe_job(name, vectors, tmp / "many32", steps=1, float64=False) for name in names]
    jobs += [case_job(case, sources, many, world=world, **stops(case)) for case in cases]
    again = [case for case in cases if stops(case)]
    jobs += [case_job(case, sources, on, world=world, begin=str(one / case / "stopped.safetensors")) for case in again]
    jobs += [{"check": name} for name in CHECKS]
    start(world, jobs, tmp)
    found = []
    for name in names:
        run_job(recipe_job(name, vectors, back, begin=str(many / name / "stopped.safetensors")))
        whole = state(one / name)
        assert whole["step"] == recipe_steps(name)
        for other, how in ((many, f"{world} ranks"), (on, f"1 then {world} ranks"), (back, f"{world} ranks then 1")):
            found += apart(whole, state(other / name), f"{name}, {how}")
        found += apart(losses(one / name), losses(many / name), f"{name}, losses")
        found += apart(losses(tmp / "one32" / name), losses(tmp / "many32" / name), f"{name}, first loss in float32")
        assert len(losses(tmp / "many32" / name)) == 1
    for case in cases:
        found += apart(state(one / case), state(many / case), f"{case}, {world} ranks")
    for case in again:
        run_job(case_job(case, sources, back, world=1, begin=str(many / case / "stopped.safetensors")))
        found += apart(state(one / case), state(on / case), f"{case}, 1 then {world} ranks")
        found += apart(state(one / case), state(back / case), f"{case}, {world} ranks then 1")
    for name in [*names, *cases]:
        for rank in range(1, world if name != "split proxies" else 1):
            found += apart(state(many / name), state(many / name, f"state-{rank}"), f"{name}, rank 0 and {rank}")
    return found


def test_two_processes_equal_one(sources: dict[str, str], tmp_path: Path) -> None:
    """One pair of processes goes through everything, because importing torch takes longer than most of it."""
    assert not (found := equal_runs(2, sources, tmp_path, recipes.names())), "\n".join(found)


@pytest.mark.slow
def test_three_processes_equal_one(sources: dict[str, str], tmp_path: Path) -> None:
    assert not (found := equal_runs(3, sources, tmp_path, recipes.names())), "\n".join(found)
