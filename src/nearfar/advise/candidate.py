"""The recipes that `nearfar advise` compares."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.config import recipes
from nearfar.config.tree import parse_setting
from nearfar.errors import NearfarError
from nearfar.spelling import suggest

# One recipe of each kind of method, simple ones first. By default, Proxy-ISA uses its memory of past embeddings only
# after some epochs. Trials have few epochs, so here it uses the memory from the start.
DEFAULT = (
    "contrastive, normalized-softmax, supcon, multi-similarity, proxy-anchor, dro-topk, mpa-ap, "
    "proxy-isa loss.memory_epoch=0 loss.filter_epoch=1"
)
# Settings whose values `nearfar advise` determines. Candidates cannot change them.
FIXED = ("recipe", "seed", "epochs", "steps", "metrics", "select", "data")


@dataclass(frozen=True)
class Candidate:
    """A recipe, and settings that change it, such as "loss.alpha=16" (as for `nearfar train --set`)."""

    recipe: str
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The recipe and its settings, separated by spaces."""
        return " ".join((self.recipe, *self.settings))


def parse_candidates(text: str) -> tuple[Candidate, ...]:
    """Parse a comma-separated list of recipes, each followed by its settings.

    >>> [candidate.settings for candidate in parse_candidates("supcon, proxy-anchor loss.alpha=16 optimizer.lr=1e-4")]
    [(), ('loss.alpha=16', 'optimizer.lr=1e-4')]
    """
    candidates: list[Candidate] = []
    recipe_names = recipes.names()
    for part in text.split(","):
        recipe, *settings = part.split() or [""]
        if recipe not in recipe_names:
            raise NearfarError(
                f"--recipes: unknown recipe {recipe!r}{suggest(recipe, recipe_names)} "
                "`nearfar recipes` lists all recipes"
            )
        for setting in settings:
            if parse_setting(setting)[0][0] in FIXED:
                raise NearfarError(f"--recipes: remove {setting!r} from {recipe}: advise sets it itself for each trial")
        candidate = Candidate(recipe, tuple(settings))
        if candidate in candidates:
            raise NearfarError(f"--recipes: {candidate.name!r} is listed twice: remove one of them")
        candidates.append(candidate)
    if len(candidates) < 2:
        raise NearfarError(f"--recipes: list at least two recipes, got {text!r}")
    return tuple(candidates)
