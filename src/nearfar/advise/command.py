"""`nearfar advise`: run the trials and print the recommendation."""

from __future__ import annotations

import math
import shlex
from functools import partial
from pathlib import Path

from nearfar.advise.budget import check_budget
from nearfar.advise.candidate import DEFAULT, Candidate, parse_candidates
from nearfar.advise.data import TrialData, open_trial_data
from nearfar.advise.recommendation import Comparison, Recommendation, recommend
from nearfar.advise.successive_halving import TRIALS, run_trials
from nearfar.errors import NearfarError


def advise_command(
    source: str, *, minutes: float, recipes: str | None, whole: bool, out: Path | None, skip_broken: bool = False
) -> Recommendation:
    """Run `nearfar advise`: compare the recipes, print progress messages, and print and return the recommendation."""
    candidates = parse_candidates(recipes or DEFAULT)
    if not 0 < minutes < math.inf:
        raise NearfarError(f"--minutes must be a number above 0, got {minutes:g}")
    folder = out or Path("runs") / f"advise-{Path(source).stem}"
    check = partial(check_budget, candidates=candidates, seconds=60 * minutes)
    data = open_trial_data(
        source, folder, seconds=60 * minutes, whole=whole, skip_broken=skip_broken, before_embedding=check
    )
    if data.manifest.kind == "features" and not (folder / TRIALS).is_file() and not (folder / "vectors.npz").is_file():
        check(data)
    print(f"{len(candidates)} recipes on {data.description}; trials are saved in {folder}")
    lines = run_trials(data, candidates, folder, seconds=60 * minutes)
    recommendation = recommend(lines, [candidate.name for candidate in candidates], held_out=data.held_out)
    print(describe(recommendation, data, candidates))
    return recommendation


def describe(recommendation: Recommendation, data: TrialData, candidates: tuple[Candidate, ...]) -> str:
    """Return a text with the scores, the comparisons, the recommended recipe and the command that trains it."""
    width = max(len(candidate.name) for candidate in candidates)
    lines = ["", f"{'recipe':{width}s}  MAP@R  steps  splits  ms per step"]
    for summary in recommendation.summaries:
        scores = f"{100 * summary.score:5.2f}  {summary.steps:5d}  {summary.splits:6d}"
        lines.append(f"{summary.name:{width}s}  {scores}  {1000 * summary.step_seconds:11.1f}")
    lines += [f"{name:{width}s}  failed: {message}" for name, message in recommendation.failed.items()]
    lines += ["", f"MAP@R of {recommendation.winner} minus that of another recipe, on the same held-out classes:"]
    lines += [f"  {_describe_comparison(comparison)}" for comparison in recommendation.comparisons]
    chosen = next(candidate for candidate in candidates if candidate.name == recommendation.recommended)
    lines += ["", _describe_choice(recommendation), train_command(data, chosen)]
    return "\n".join(lines)


def train_command(data: TrialData, candidate: Candidate) -> str:
    """Return the `nearfar train` command that trains with a candidate."""
    words = ["nearfar", "train", data.source, "--recipe", candidate.recipe]
    for setting in candidate.settings:
        words += ["--set", setting]
    return shlex.join(words)


def _describe_comparison(comparison: Comparison) -> str:
    difference = comparison.difference
    text = f"against {comparison.other}: {100 * difference.mean:+.2f}"
    if difference.n == 1:
        return f"{text} on one class split, {comparison.steps:,} steps"
    interval = f"[{100 * difference.low:+.2f}, {100 * difference.high:+.2f}]"
    note = "" if difference.excludes_zero else "; the interval includes zero"
    return f"{text} {interval} over {difference.n} class splits, {comparison.steps:,} steps{note}"


def _describe_choice(recommendation: Recommendation) -> str:
    if not recommendation.is_too_close:
        return f"Use {recommendation.recommended}:"
    return (
        f"{recommendation.winner} and {recommendation.comparisons[0].other} are too close to call. "
        f"Use {recommendation.recommended}, the faster one (or, if both are about equally fast, the one listed first):"
    )
