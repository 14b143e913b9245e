"""`nearfar advise`: the races, and what they say."""

from __future__ import annotations

import shlex
from pathlib import Path

from nearfar.advise.data import Course, open_course
from nearfar.advise.entrant import DEFAULT, Entrant, parse_entrants
from nearfar.advise.halving import race_all
from nearfar.advise.verdict import Comparison, Verdict, verdict_of
from nearfar.errors import NearfarError


def advise_command(source: str, *, minutes: float, recipes: str | None, whole: bool, out: Path | None) -> Verdict:
    """Everything that the command does."""
    entrants = parse_entrants(recipes or DEFAULT)
    if minutes <= 0:
        raise NearfarError(f"--minutes must be above 0, got {minutes:g}")
    where = out or Path("runs") / f"advise-{Path(source).stem}"
    course = open_course(source, where, seconds=60 * minutes, whole=whole)
    print(f"{len(entrants)} recipes on {course.about}; races in {where}")
    lines = race_all(course, entrants, where, seconds=60 * minutes)
    found = verdict_of(lines, [each.name for each in entrants], held_out=course.held_out)
    print(describe(found, course, entrants))
    return found


def describe(found: Verdict, course: Course, entrants: tuple[Entrant, ...]) -> str:
    """Table, differences, recommendation and command, as text."""
    width = max(len(each.name) for each in entrants)
    lines = ["", f"{'recipe':{width}s}  MAP@R  steps  splits  ms a step"]
    for each in found.places:
        time = f"{1000 * each.step_seconds:9.1f}"
        lines.append(f"{each.name:{width}s}  {100 * each.score:5.2f}  {each.steps:5d}  {each.splits:6d}  {time}")
    lines += [f"{name:{width}s}  failed: {message}" for name, message in found.failed.items()]
    lines += ["", f"{found.winner}, compared on the same held-out classes:"]
    lines += [f"  {_told(each)}" for each in found.comparisons]
    lines += ["", _recommended(found), command(course, next(e for e in entrants if e.name == found.recommended))]
    return "\n".join(lines)


def command(course: Course, entrant: Entrant) -> str:
    """The training that the races speak for."""
    words = ["nearfar", "train", course.source, "--recipe", entrant.recipe]
    for each in entrant.settings:
        words += ["--set", each]
    return shlex.join(words)


def _told(each: Comparison) -> str:
    found = each.difference
    text = f"against {each.other}: {100 * found.mean:+.2f}"
    if found.n == 1:
        return f"{text} on one class split, {each.steps:,} steps"
    sure = "" if found.clear else ", which holds zero"
    interval = f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
    return f"{text} {interval} over {found.n} class splits, {each.steps:,} steps{sure}"


def _recommended(found: Verdict) -> str:
    if not found.too_close:
        return f"Take {found.recommended}:"
    rival = found.comparisons[0].other
    return f"Too close to call between {found.winner} and {rival}. Take {found.recommended}, the faster or simpler:"
