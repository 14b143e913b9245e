"""Later rounds of a search, whose trials depend on earlier results.

If settings are tuned one by one, a round varies the next setting. Other rounds extend a range whose best value is at
one of its ends, because an even better value may lie beyond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from nearfar.config.tree import parse_setting
from nearfar.errors import NearfarError
from nearfar.suites.cells import CellMaker
from nearfar.suites.tuning import Trial, as_setting, make_trial, search_space


def following_trials(
    maker: CellMaker, trials: Sequence[Trial], values: Mapping[str, float]
) -> Iterator[Callable[[], list[Trial]]]:
    """Yield a function for each round of trials after the first. Calling the function returns the trials of its round.

    The caller must call the function and run these trials before it requests the next function.

    Args:
        maker: makes the cells of the suite.
        trials: the trials so far. The caller adds the trials of each round.
        values: maps the id of each trial to its score; failed trials are absent. The caller adds the scores of each
            round.
    """
    suite = maker.suite
    if suite.tune.one_by_one:
        longest = max(
            (len(search_space(suite, dataset, method)) for dataset in maker.data for method in suite.methods), default=0
        )
        for i in range(1, longest):
            yield partial(_trials_from_best, maker, trials, values, partial(_values_of_setting, i))
    for _ in range(suite.tune.extend):
        yield partial(_trials_from_best, maker, trials, values, _beyond_the_ends)


def _trials_from_best(
    maker: CellMaker,
    trials: Sequence[Trial],
    values: Mapping[str, float],
    vary: Callable[[tuple[str, ...], Mapping[str, list[Any]], Collection[tuple[str, ...]]], list[tuple[str, ...]]],
) -> list[Trial]:
    """Return new trials for each dataset and method: variations of the best settings so far.

    Settings that are not valid are left out.

    Args:
        maker: makes the cells of the suite.
        trials: the trials so far.
        values: maps the id of each trial to its score.
        vary: function that takes the best settings, the search space and the tried settings, and returns further
            settings to try.
    """
    suite, extra = maker.suite, []
    by_place: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        by_place.setdefault(trial.place, []).append(trial)
    for dataset in maker.data:
        for method in suite.methods:
            tried = by_place.get((dataset.name, method.name), [])
            best = max(tried, key=lambda trial: values.get(trial.cell.id, -math.inf), default=None)
            if best is None or best.cell.id not in values:
                continue
            space, known = search_space(suite, dataset, method), {trial.settings for trial in tried}
            for settings in vary(best.settings, space, known):
                with suppress(NearfarError):
                    extra.append(make_trial(maker, dataset, method, settings))
    return extra


def _values_of_setting(
    i: int, best: tuple[str, ...], space: Mapping[str, list[Any]], tried: Collection[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Return copies of the best settings, each with another value of the i-th setting. Tried copies are left out.

    >>> _values_of_setting(1, ("a=1", "b=5"), {"a": [1, 2], "b": [5, 6]}, {("a=1", "b=5"), ("a=2", "b=5")})
    [('a=1', 'b=6')]
    """
    if i >= len(best):
        return []
    key, values = list(space.items())[i]
    varied = [(*best[:i], as_setting(key, value), *best[i + 1 :]) for value in values]
    return [settings for settings in varied if settings not in tried]


def _beyond_the_ends(
    best: tuple[str, ...], space: Mapping[str, list[Any]], tried: Collection[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Return copies of the best settings. In each copy, one number at an end of its range is moved beyond that end.

    The range of a setting consists of its values in `tried`. The new number continues the range geometrically: 1e-3,
    3e-3, 1e-2 is followed by 3.33e-2.

    >>> _beyond_the_ends(("a=10", "b=x"), {}, {("a=10", "b=x"), ("a=5", "b=x"), ("a=1", "b=y")})
    [('a=20', 'b=x')]
    """
    moved = []
    for i, setting in enumerate(best):
        key = setting.partition("=")[0]
        numbers = {parse_setting(settings[i])[1] for settings in tried}
        if len(numbers) < 2 or not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
            continue
        ordered, value = sorted(numbers), parse_setting(setting)[1]
        neighbor = {ordered[0]: ordered[1], ordered[-1]: ordered[-2]}.get(value)
        if neighbor is None or not value > 0 or not neighbor > 0:
            continue
        following = value * value / neighbor
        is_whole = all(isinstance(number, int) for number in numbers)
        number = round(following) if is_whole else float(f"{following:.3g}")
        settings = (*best[:i], as_setting(key, number), *best[i + 1 :])
        if settings not in tried:
            moved.append(settings)
    return moved
