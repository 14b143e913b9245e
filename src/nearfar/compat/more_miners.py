"""More miners. They select by difficulty, by angle, by histograms of distances, or by position in the batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfar.compat.arguments import InvalidInputError
from nearfar.compat.base_miner import BaseMiner, HardnessMiner, PairIndices, Triplets, indices_of
from nearfar.compat.distances import Distance
from nearfar.compat.indices import Indices, as_pairs
from nearfar.compat.utils.loss_and_miner_utils import get_all_pairs_indices, get_all_triplets_indices
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_choice

STRATEGIES = ("hard", "semihard", "easy", "all")
Range = tuple[float, float]


class BatchEasyHardMiner(HardnessMiner):
    """Select one positive and one negative for each anchor, or all of them with the strategy "all".

    Args:
        pos_strategy: "easy" selects the closest positive. "hard" selects the farthest positive. "semihard" selects the
            farthest positive that is closer than the selected negative. "all" selects every positive.
        neg_strategy: "easy" selects the farthest negative. "hard" selects the closest negative. "semihard" selects the
            closest negative that is farther than the selected positive. "all" selects every negative.
        allowed_pos_range: The smallest and largest distance of a selected positive. Not used if pos_strategy is "all".
        allowed_neg_range: The smallest and largest distance of a selected negative. Not used if neg_strategy is "all".
        distance: The distance.
        collect_stats: Whether to store the statistics in `HardnessMiner`.
    """

    HARD, SEMIHARD, EASY, ALL = STRATEGIES

    def __init__(
        self,
        pos_strategy: str = "easy",
        neg_strategy: str = "semihard",
        allowed_pos_range: Range | None = None,
        allowed_neg_range: Range | None = None,
        *,
        distance: Distance | None = None,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(distance=distance, collect_stats=collect_stats)
        self.pos_strategy = check_choice("pos_strategy", pos_strategy, STRATEGIES)
        self.neg_strategy = check_choice("neg_strategy", neg_strategy, STRATEGIES)
        if "semihard" in (pos_strategy, neg_strategy) and {pos_strategy, neg_strategy} <= {"semihard", "all"}:
            raise ValueError(
                f"pos_strategy={pos_strategy!r} cannot be combined with neg_strategy={neg_strategy!r}: "
                "if one of them is 'semihard', the other must be 'easy' or 'hard'"
            )
        self.allowed_pos_range, self.allowed_neg_range = allowed_pos_range, allowed_neg_range

    def select(self, pairs: Pairs, dim: int) -> PairIndices:
        values = self.distance.sign * pairs.sim
        same, diff = self.within(values, pairs.same, self.allowed_pos_range), pairs.diff
        diff = self.within(values, diff, self.allowed_neg_range)
        # A hard positive is far from the anchor. A hard negative is close to it.
        if self.pos_strategy == "semihard":
            n, has_n = closest(pairs.sim, diff) if self.neg_strategy == "hard" else farthest(pairs.sim, diff)
            p, has_p = farthest(pairs.sim, same & (pairs.sim > pairs.sim.gather(1, n)))
        else:
            p, has_p = closest(pairs.sim, same) if self.pos_strategy == "easy" else farthest(pairs.sim, same)
            if self.neg_strategy == "semihard":
                diff = diff & (pairs.sim < pairs.sim.gather(1, p))
            n, has_n = farthest(pairs.sim, diff) if self.neg_strategy == "easy" else closest(pairs.sim, diff)
        every1, every_p, every2, every_n = indices_of(pairs)
        if "all" not in (self.pos_strategy, self.neg_strategy):
            has_p = has_n = has_p & has_n
        a1, a2 = has_p.nonzero().flatten(), has_n.nonzero().flatten()
        a1, p = (every1, every_p) if self.pos_strategy == "all" else (a1, p[a1, 0])
        a2, n = (every2, every_n) if self.neg_strategy == "all" else (a2, n[a2, 0])
        triplets = "all" not in (self.pos_strategy, self.neg_strategy)
        self.store_extremes(pairs.sim[a1, p], pairs.sim[a2, n], triplets=triplets)
        return a1, p, a2, n

    @staticmethod
    def within(values: Tensor, mask: Tensor, allowed: Range | None) -> Tensor:
        """Restrict a mask to the entries whose values are in the range `allowed`. If it is None, keep the mask."""
        return mask if allowed is None else mask & (values >= allowed[0]) & (values <= allowed[1])


def closest(sim: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Find the largest similarity in each of A rows, among the entries where the mask is True.

    Return its column [A, 1], and whether the mask has any True entry in the row [A].
    """
    return torch.where(mask, sim, -torch.inf).argmax(1, keepdim=True), mask.any(1)


def farthest(sim: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Find the smallest similarity in each row where the mask is True. The result has the same form as in `closest`."""
    return closest(-sim, mask)


class AngularMiner(BaseMiner):
    """Select the triplets whose angle at the negative is above a threshold (Wang et al., ICCV 2017, angular loss).

    The angle is arctan(||a - p|| / (2 ||n - c||)), where c is the midpoint of anchor a and positive p. The embeddings
    are not normalized, as in pytorch-metric-learning.

    Args:
        angle: The threshold in degrees.
        distance: Must be None or LpDistance(), the default.
        collect_stats: Whether to store statistics of the angles of all triplets, in degrees.
    """

    only_distance = True
    statistics = (
        *("average_angle", "average_angle_above_threshold", "average_angle_below_threshold"),
        *("min_angle", "max_angle", "std_of_angle"),
    )

    def __init__(
        self, angle: float = 20, *, distance: Distance | None = None, collect_stats: bool | None = None
    ) -> None:
        super().__init__(distance=distance, collect_stats=collect_stats)
        self.angle = math.radians(angle)

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> Triplets:
        a, p, n = get_all_triplets_indices(labels, ref_labels)
        center = (embeddings[a] + ref_emb[p]) / 2
        width = torch.nn.functional.pairwise_distance(embeddings[a], ref_emb[p])
        height = torch.nn.functional.pairwise_distance(ref_emb[n], center)
        angles = torch.atan(width / (2 * height))
        above = angles > self.angle
        if self.collect_stats and len(angles):
            self.store_angles(angles.rad2deg(), above)
        return a[above], p[above], n[above]

    def store_angles(self, angles: Tensor, above: Tensor) -> None:
        """Store the statistics of the angles, in degrees."""
        self.store(average_angle=angles.mean(), min_angle=angles.min(), max_angle=angles.max())
        self.store(std_of_angle=angles.std())
        if above.any():
            self.store(average_angle_above_threshold=angles[above].mean())
        if not above.all():
            self.store(average_angle_below_threshold=angles[~above].mean())


class HDCMiner(BaseMiner):
    """Select the hardest pairs: the farthest positive and the closest negative pairs (Yuan et al., ICCV 2017).

    Args:
        filter_percentage: The fraction of the positive pairs and of the negative pairs to select, from 0 to 1.
        distance: The distance.
        collect_stats: Whether to store the numbers of selected pairs.
    """

    def __init__(
        self, filter_percentage: float = 0.5, *, distance: Distance | None = None, collect_stats: bool | None = None
    ) -> None:
        super().__init__(distance=distance, collect_stats=collect_stats)
        self.filter_percentage = filter_percentage
        self.reset_idx()

    def set_idx_externally(self, external_indices_tuple: Indices, labels: Tensor) -> None:
        """Select from these pairs or triplets instead of from all pairs, until `reset_idx` is called.

        Each call of the miner then selects from the pairs that the previous call selected.
        """
        self.candidates: PairIndices | None = as_pairs(external_indices_tuple)
        self.was_set_externally = True

    def reset_idx(self) -> None:
        """Select from all pairs again."""
        self.candidates, self.was_set_externally = None, False

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> PairIndices:
        sim = self.distance.similarity(embeddings, None if ref_emb is embeddings else ref_emb)
        a1, p, a2, n = self.candidates or get_all_pairs_indices(labels, ref_labels)
        hard_p, hard_n = self.hardest(-sim[a1, p]), self.hardest(sim[a2, n])
        selected = a1[hard_p], p[hard_p], a2[hard_n], n[hard_n]
        if self.was_set_externally:
            self.candidates = selected
        return selected

    def hardest(self, scores: Tensor) -> Tensor:
        """Return the positions of the largest scores. The fraction of positions to return is `filter_percentage`."""
        return scores.topk(math.ceil(self.filter_percentage * len(scores))).indices


class UniformHistogramMiner(BaseMiner):
    """Draw pairs so that their distances are spread evenly between the smallest and the largest distance.

    Positive and negative pairs are drawn separately. Their distances are divided into bins of equal width, and pairs
    are drawn with replacement from each bin that is not empty.

    Args:
        num_bins: The number of bins.
        pos_per_bin: The number of positive pairs per bin.
        neg_per_bin: The number of negative pairs per bin.
        distance: The distance.
        collect_stats: Whether to store the numbers of selected pairs.
    """

    def __init__(
        self,
        num_bins: int = 100,
        pos_per_bin: int = 10,
        neg_per_bin: int = 10,
        *,
        distance: Distance | None = None,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(distance=distance, collect_stats=collect_stats)
        if num_bins < 1:
            raise InvalidInputError(f"num_bins must be at least 1, got {num_bins}")
        self.num_bins, self.pos_per_bin, self.neg_per_bin = num_bins, pos_per_bin, neg_per_bin

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> PairIndices:
        values = self.distance(embeddings, None if ref_emb is embeddings else ref_emb)
        a1, p, a2, n = get_all_pairs_indices(labels, ref_labels)
        pos, neg = self.draw(values[a1, p], self.pos_per_bin), self.draw(values[a2, n], self.neg_per_bin)
        return a1[pos], p[pos], a2[neg], n[neg]

    def draw(self, values: Tensor, per_bin: int) -> Tensor:
        """Draw `per_bin` values from each bin that is not empty, and return their positions."""
        if len(values) == 0:
            return torch.zeros(0, dtype=torch.int64, device=values.device)
        low, high = values.aminmax()
        bins = ((values - low) / (high - low).clamp_min(1e-30) * self.num_bins).long().clamp_max(self.num_bins - 1)
        order = bins.argsort()
        counts = torch.bincount(bins, minlength=self.num_bins)
        starts = counts.cumsum(0) - counts
        filled = counts > 0
        offsets = torch.rand(int(filled.sum()), per_bin, device=values.device) * counts[filled][:, None]
        return order[(starts[filled][:, None] + offsets.long()).flatten()]


class EmbeddingsAlreadyPackagedAsTriplets(BaseMiner):
    """Return the triplets of a batch that consists of anchor, positive, negative, anchor, positive, ..."""

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> Triplets:
        a = torch.arange(0, len(embeddings), 3, device=embeddings.device)
        return a, a + 1, a + 2
