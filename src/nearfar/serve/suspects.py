"""The audit as a list to go through: each suspect with its evidence and what was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from nearfar.audit import Audit
from nearfar.data.manifest import Ints
from nearfar.serve.decisions import Decision
from nearfar.serve.json_models import Sample, Suspect, Suspects

BESIDE = 10


class SuspectList:
    """The order of an audit; `ids` are the samples of its rows, `describe` gives a sample by its id."""

    def __init__(self, found: Audit, ids: Ints, describe: Callable[[int], Sample]) -> None:
        self.found, self.ids, self.describe = found, ids, describe
        self.order = found.order()
        self.doubted = int((found.suggested != found.labels).sum())

    def part(self, decisions: dict[int, Decision], *, offset: int, limit: int, state: str) -> Suspects:
        """Suspects of a state (all, open, decided) in the audit's order."""
        ids = self.ids[self.order]
        decided = np.isin(ids, np.fromiter(decisions, np.int64, len(decisions)))
        chosen = np.arange(len(ids)) if state == "all" else np.flatnonzero(decided == (state == "decided"))
        return Suspects(
            total=len(chosen),
            doubted=self.doubted,
            offset=offset,
            decided=dict(Counter(each.decision for each in decisions.values())),
            suspects=[self._suspect(int(rank), decisions) for rank in chosen[offset : offset + limit]],
        )

    def _suspect(self, rank: int, decisions: dict[int, Decision]) -> Suspect:
        found, row = self.found, int(self.order[rank])
        decided = decisions.get(int(self.ids[row]), Decision(""))
        # the others of its class, the least suspicious first
        mates = self.order[::-1][(found.labels[self.order[::-1]] == found.labels[row]) & (self.order[::-1] != row)]
        return Suspect(
            sample=self._sample(row),
            rank=rank + 1,
            score=float(found.score[row]),
            suggested=int(found.suggested[row]),
            rival=int(found.rival[row]),
            reason=found.reason(row).encode("utf-8", "replace").decode(),
            neighbors=[self._sample(int(i)) for i in found.neighbors[row, :BESIDE]],
            mates=[self._sample(int(i)) for i in mates[:BESIDE]],
            decision=decided.decision,
            new_label=decided.label,
        )

    def _sample(self, row: int) -> Sample:
        return self.describe(int(self.ids[row]))
