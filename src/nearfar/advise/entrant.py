"""Who races: a recipe, perhaps with settings of its own."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.config import recipes
from nearfar.config.tree import parse_setting
from nearfar.errors import NearfarError
from nearfar.validation import nearest

# From simple to elaborate, one of each kind. Proxy-ISA's memory begins at once (ours: races have few epochs).
DEFAULT = (
    "contrastive, normalized-softmax, supcon, multi-similarity, proxy-anchor, dro-topk, mpa-ap, "
    "proxy-isa loss.memory_epoch=0 loss.filter_epoch=1 loss.volume=30"
)
# the races decide on these
OWN = ("recipe", "seed", "epochs", "steps", "metrics", "select", "data")


@dataclass(frozen=True)
class Entrant:
    """A recipe with settings as for `nearfar train --set`; `name` is how it was written."""

    recipe: str
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The recipe, and what was set."""
        return " ".join((self.recipe, *self.settings))


def parse_entrants(text: str) -> tuple[Entrant, ...]:
    """Entrants between commas, each a recipe and after spaces its settings.

    >>> [each.settings for each in parse_entrants("supcon, proxy-anchor loss.alpha=16 optimizer.lr=1e-4")]
    [(), ('loss.alpha=16', 'optimizer.lr=1e-4')]
    """
    found = []
    known = recipes.names()
    for part in text.split(","):
        recipe, *settings = part.split() or [""]
        if recipe not in known:
            raise NearfarError(f"--recipes: no recipe {recipe!r}{nearest(recipe, known)} `nearfar recipes` lists them")
        for each in settings:
            if parse_setting(each)[0][0] in OWN:
                raise NearfarError(f"--recipes: {recipe} sets {each!r}, but the races decide on that: leave it out")
        found.append(Entrant(recipe, tuple(settings)))
    names = [each.name for each in found]
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise NearfarError(f"--recipes: {twice[0]!r} is there twice")
    if len(found) < 2:
        raise NearfarError(f"--recipes: a race needs at least two, got {text!r}")
    return tuple(found)
