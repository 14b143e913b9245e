"""Choose default settings for data that has pairs instead of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nearfar.config.tree import merge_trees
from nearfar.data import Manifest
from nearfar.training.components import pairs_of

RECIPE = "supcon"  # compares each pair with all negatives in the batch, and supports graded pairs
SAMPLER = "pairs"


def choose_for_pairs(
    tree: Mapping[str, Any], manifest: Manifest, recipe: str | None
) -> tuple[dict[str, Any], str | None]:
    """Return the settings and the recipe, with defaults for pairs if the manifest has pairs and no classes.

    The default recipe is `supcon`, unless a recipe or a loss is chosen. The default sampler is `pairs`.
    """
    if pairs_of(manifest) is None:
        return dict(tree), recipe
    if recipe is None and not tree.get("recipe") and not (tree.get("loss") or {}).get("name"):
        recipe = RECIPE
    if "name" not in (tree.get("batches") or {}):
        tree = merge_trees(tree, {"batches": {"name": SAMPLER}})
    return dict(tree), recipe
