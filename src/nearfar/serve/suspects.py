"""The results of an audit as a list of suspicious samples, each with the evidence and the user's decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from nearfar.audit import Audit
from nearfar.data.manifest import Ints
from nearfar.serve.decision_file import Decision
from nearfar.serve.json_models import Sample, Suspect, SuspectPage

EVIDENCE = 10


class SuspectList:
    """Samples in the order of an audit, most suspicious first.

    Args:
        audit: The audit.
        ids: The id of each sample of the audit.
        describe: A function that returns a sample by its id.
    """

    def __init__(self, audit: Audit, ids: Ints, describe: Callable[[int], Sample]) -> None:
        self.audit, self.ids, self.describe = audit, ids, describe
        self.order = audit.order()
        self.suspected = int(audit.flagged.sum())

    def page(self, decisions: dict[int, Decision], *, offset: int, limit: int, state: str) -> SuspectPage:
        """Return up to `limit` suspects, starting at position `offset`.

        Args:
            decisions: A dict that maps sample ids to the user's decisions so far.
            offset: Position of the first suspect to return.
            limit: The largest number of suspects to return.
            state: Which suspects to count and return: "all", "open" (without a decision) or "decided".
        """
        ids = self.ids[self.order]
        is_decided = np.isin(ids, np.fromiter(decisions, np.int64, len(decisions)))
        ranks = np.arange(len(ids)) if state == "all" else np.flatnonzero(is_decided == (state == "decided"))
        return SuspectPage(
            total=len(ranks),
            suspected=self.suspected,
            offset=offset,
            decided=dict(Counter(decision.decision for decision in decisions.values())),
            suspects=[self._suspect(int(rank), decisions) for rank in ranks[offset : offset + limit]],
        )

    def _suspect(self, rank: int, decisions: dict[int, Decision]) -> Suspect:
        audit, row = self.audit, int(self.order[rank])
        decision = decisions.get(int(self.ids[row]), Decision(""))
        reverse = self.order[::-1]
        # The other samples of the suspect's class, least suspicious first.
        classmates = reverse[(audit.labels[reverse] == audit.labels[row]) & (reverse != row)]
        return Suspect(
            sample=self._sample(row),
            rank=rank + 1,
            score=float(audit.score[row]),
            suggested=int(audit.suggested[row]),
            rival=int(audit.rival[row]),
            reason=audit.reason(row).encode("utf-8", "replace").decode(),
            neighbors=[self._sample(int(i)) for i in audit.neighbors[row, :EVIDENCE]],
            classmates=[self._sample(int(i)) for i in classmates[:EVIDENCE]],
            decision=decision.decision,
            new_label=decision.label,
        )

    def _sample(self, row: int) -> Sample:
        return self.describe(int(self.ids[row]))
