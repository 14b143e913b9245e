"""Lists of near duplicates and outliers. Each sample is listed with the user's decision: keep, relabel or remove."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nearfar.audit import Neighborhoods
from nearfar.data.manifest import Ints
from nearfar.serve.decision_file import Decision
from nearfar.serve.json_models import DuplicatePage, DuplicateSummary, NearSample, OutlierPage, Sample

MAX_GROUP = 24  # largest number of samples that are listed for each group


class NeighborhoodList:
    """A list of groups of near duplicates, and a list of outliers.

    Groups with samples of different splits come first. Outliers are ordered by their mean distance to their ten nearest
    neighbors, largest first.

    Args:
        found: The near duplicates and outliers of the audited samples.
        ids: The id of each of these samples.
        describe: A function that returns a sample by its id.
    """

    def __init__(self, found: Neighborhoods, ids: Ints, describe: Callable[[int], Sample]) -> None:
        self.found, self.ids, self.describe = found, ids, describe

    def duplicates(self, decisions: dict[int, Decision], *, offset: int, limit: int) -> DuplicatePage:
        """Return up to `limit` groups, starting at position `offset`.

        `decisions` maps sample ids to the user's decisions.
        """
        groups = self.found.groups
        return DuplicatePage(
            total=len(groups),
            across_splits=sum(group.is_across_splits for group in groups),
            offset=offset,
            groups=[
                DuplicateSummary(
                    samples=self._samples(group.rows[:MAX_GROUP].tolist(), decisions),
                    count=len(group.rows),
                    distance=group.distance,
                    across_splits=group.is_across_splits,
                    several_labels=group.has_several_labels,
                )
                for group in groups[offset : offset + limit]
            ],
        )

    def outliers(self, decisions: dict[int, Decision], *, offset: int, limit: int) -> OutlierPage:
        """Return up to `limit` outliers, starting at position `offset`.

        `decisions` maps sample ids to the user's decisions.
        """
        rows = self.found.outliers
        samples = self._samples(rows[offset : offset + limit].tolist(), decisions)
        return OutlierPage(total=len(rows), offset=offset, samples=samples)

    def _samples(self, rows: Iterable[int], decisions: dict[int, Decision]) -> list[NearSample]:
        samples = [self.describe(int(self.ids[row])) for row in rows]
        undecided = Decision("")
        return [
            NearSample(**sample.model_dump(), decision=decisions.get(sample.id, undecided).decision)
            for sample in samples
        ]
