"""BSPML (balanced self-paced metric learning), which is SPMS (self-paced multi-similarity) if mu = 0."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nearfar.pacing.coordinate import coordinate_descent
from nearfar.pacing.objective import Floats, WeightProblem
from nearfar.pacing.pacer import Pacer, register
from nearfar.pacing.schedule import make_schedule, select_easiest, solve_for_share
from nearfar.pacing.solver import solve
from nearfar.pacing.xi import MEMORY_MB, hardness
from nearfar.validation import check_choice, check_positive


@register("self-paced")
class SelfPaced(Pacer):
    """Weights that minimize Eq. 6 of BSPML for the current embeddings (Zhang et al., AAAI 2023, arXiv 2211.11751).

    Each update computes the hardness xi+ and xi- of every training sample and then solves for the weights. Samples that
    are far from their own class or close to another class get small weights. The paper uses the weights in the loss
    `multi-similarity` with weighting="outside" and threshold=1 (Eq. 7), but every loss that accepts sample weights
    works. By default, all weights are 1 in the first epoch, and an update follows every epoch (Algorithm 1).

    The objective, the defaults of `alpha`, `beta` and `threshold`, and the growth of the age by a constant factor up to
    a limit are from the paper. The paper does not state values for `growth`, `most` and `mu`; their defaults are our
    choice. The options `share` and `noise_rate` are our additions.

    Args:
        samples: Number of training samples.
        classes: Number of training classes.
        share: Fraction of the samples to keep in the first round. A round is one update of the weights.
        age: The age in the first round (lambda in the paper). If it is given, `share` is ignored, and the solver starts
            from the current weights.
        growth: Factor by which the share or age is multiplied after each round.
        most: Upper limit of the share or the age. By default, the limit of the share is 0.95, or `share` if that is
            larger, and the age has no limit.
        noise_rate: Expected fraction of wrong labels. If it is given, it replaces `share` and `most`, and every round
            keeps the fraction 1 - noise_rate of the samples.
        mu: Weight of the term that balances the mean weights of the classes. 0 gives SPMS.
        rule: How to find the age for a share. "exact" searches for the age at which the solution keeps this fraction.
            "quantile" uses the age from `nearfar.pacing.schedule.select_easiest`, whose solution keeps more than this
            fraction.
        solver: "block" is our own solver (see `nearfar.pacing.solver`). "coordinate" is Algorithm 3 of the paper with
            5 N steps for N samples; with it, the age for a share is always that of the rule "quantile".
        alpha: Scale of the positives in xi+ (see `nearfar.pacing.xi.hardness`).
        beta: Scale of the negatives in xi-.
        threshold: Similarity threshold in xi+ and xi- (rho in the paper).
        warm_up: See `Pacer`.
        every: See `Pacer`.
        seed: Seed of the solver "coordinate".
        memory_mb: Memory in MiB for one block of the similarity matrix and a copy of it.
    """

    def __init__(
        self,
        *,
        samples: int,
        classes: int,
        share: float = 0.7,
        age: float | None = None,
        growth: float = 1.05,
        most: float | None = None,
        noise_rate: float | None = None,
        mu: float = 1.0,
        rule: str = "exact",
        solver: str = "block",
        alpha: float = 2.0,
        beta: float = 50.0,
        threshold: float = 1.0,
        warm_up: int = 1,
        every: int = 1,
        seed: int = 0,
        memory_mb: int = MEMORY_MB,
    ) -> None:
        super().__init__(samples=samples, classes=classes, warm_up=warm_up, every=every)
        self.by_age = age is not None
        if noise_rate is not None:
            if self.by_age:
                raise ValueError(f"noise_rate={noise_rate} and age={age} cannot be combined: pass one of them")
            if not 0 <= noise_rate < 1:
                raise ValueError(f"noise_rate must be at least 0 and below 1, got {noise_rate}")
            share = most = 1 - noise_rate
        self.schedule = make_schedule(share=share, age=age, growth=growth, most=most)
        if not mu >= 0:
            raise ValueError(f"mu must be at least 0, got {mu}")
        self.mu, self.seed, self.memory_mb = mu, seed, memory_mb
        self.rule = check_choice("rule", rule, ("exact", "quantile"))
        self.solver = check_choice("solver", solver, ("block", "coordinate"))
        self.alpha, self.beta = check_positive("alpha", alpha), check_positive("beta", beta)
        self.threshold = threshold

    def update(self, embeddings: Tensor, labels: Tensor, *, loss: nn.Module | None = None) -> dict[str, float]:
        """Solve for the weights.

        The returned numbers include "lambda" (the age), the objective and the residual of the solution.
        """
        self.check_samples(embeddings, labels)
        pos, neg = hardness(
            embeddings,
            labels,
            alpha=self.alpha,
            beta=self.beta,
            threshold=self.threshold,
            memory_mb=self.memory_mb,
        )
        problem = WeightProblem.of(pos.cpu().numpy(), neg.cpu().numpy(), labels.cpu().numpy(), age=0.0, mu=self.mu)
        w, problem = self.solve(problem)
        self.weights = torch.from_numpy(w).float()
        self.rounds += 1
        details = {"lambda": problem.age, "objective": problem.value(w), "residual": problem.residual(w)}
        return self.summary(labels) | details

    def solve(self, problem: WeightProblem) -> tuple[Floats, WeightProblem]:
        """Return the weights for the current round, and the problem with the age of this round."""
        goal = self.schedule.at(self.rounds)
        if self.by_age:
            start, age = self.weights.double().numpy(), goal
        elif self.rule == "exact" and self.solver == "block":
            solution, age = solve_for_share(problem, goal)
            return solution.weights, problem.at_age(age)
        else:
            start, age = select_easiest(problem, goal)
        problem = problem.at_age(age)
        if self.solver == "block":
            return solve(problem, start).weights, problem
        draw = int(np.random.default_rng((self.seed, self.rounds)).integers(2**31))
        return coordinate_descent(problem, start, steps=5 * len(start), seed=draw), problem
