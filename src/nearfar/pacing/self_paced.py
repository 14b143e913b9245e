"""Balanced self-paced weights: BSPML, and with mu = 0 SPMS."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nearfar.pacing.coordinate import coordinate_descent
from nearfar.pacing.objective import Floats, WeightProblem
from nearfar.pacing.pacer import Pacer, register
from nearfar.pacing.schedule import easiest, schedule, solve_for_share
from nearfar.pacing.solver import solve
from nearfar.pacing.xi import MEMORY_MB, hardness
from nearfar.validation import check_choice, check_positive


@register("self-paced")
class SelfPaced(Pacer):
    """Weights that minimize Eq. 6 of BSPML at the present embeddings (Zhang et al., AAAI 2023, arXiv 2211.11751).

    Each update computes xi+ and xi- over the whole training set and solves for the weights: samples that are hard in
    their own class or easily taken for another class leave. Meant for `multi-similarity` with weighting="outside" and
    threshold=1 (Eq. 7), usable with every loss that takes weights.

    The paper's: alpha, beta, threshold, the objective, ages that grow by a factor up to a limit. Ours, for want of its:

    - `share` of samples to keep, 0.7 in the first round, times `growth` (1.05) each round, at most `most` (0.95), and
      mu=1. `rule` "exact" finds the age whose solution keeps that share, "quantile" takes the share's quantile of the
      hardness among the easiest samples, whose solution keeps more. Who knows the share of wrong labels gives
      `noise_rate`, in place of share and most: 1 - noise_rate is kept from the first round on. With `age` given, ages
      are that number times growth, at most `most`, and the solver goes on from the present weights.
    - `solver` "block" is ours (see solver.py); "coordinate" is the paper's Algorithm 3, 5 N steps, whose rule is always
      "quantile".
    - the first update comes after one epoch with all weights 1 (Algorithm 1), then one every epoch.
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
            if self.by_age or not 0 <= noise_rate < 1:
                raise ValueError(f"noise_rate must be at least 0 and below 1, and without age, got {noise_rate}")
            share = most = 1 - noise_rate
        self.schedule = schedule(share=share, age=age, growth=growth, most=most)
        if not mu >= 0:
            raise ValueError(f"mu must be at least 0, got {mu}")
        self.mu, self.seed, self.memory_mb = mu, seed, memory_mb
        self.rule = check_choice("rule", rule, ("exact", "quantile"))
        self.solver = check_choice("solver", solver, ("block", "coordinate"))
        self.alpha, self.beta = check_positive("alpha", alpha), check_positive("beta", beta)
        self.threshold = threshold

    def update(self, embeddings: Tensor, labels: Tensor, *, loss: nn.Module | None = None) -> dict[str, float]:
        """Solve for the weights; logs also lambda (the age), the objective and the solver's residual."""
        self.check_rows(embeddings, labels)
        pos, neg = hardness(
            embeddings,
            labels,
            alpha=self.alpha,
            beta=self.beta,
            threshold=self.threshold,
            memory_mb=self.memory_mb,
        )
        problem = WeightProblem.of(pos.cpu().numpy(), neg.cpu().numpy(), labels.cpu().numpy(), age=0.0, mu=self.mu)
        w, problem = self.solved(problem)
        self.weights = torch.from_numpy(w).float()
        self.rounds += 1
        ours = {"lambda": problem.age, "objective": problem.value(w), "residual": problem.residual(w)}
        return self.summary(labels) | ours

    def solved(self, problem: WeightProblem) -> tuple[Floats, WeightProblem]:
        """The weights of this round, and the problem at its age."""
        goal = self.schedule.at(self.rounds)
        if self.by_age:
            start, age = self.weights.double().numpy(), goal
        elif self.rule == "exact" and self.solver == "block":
            solution, age = solve_for_share(problem, goal)
            return solution.weights, problem.at_age(age)
        else:
            start, age = easiest(problem, goal)
        problem = problem.at_age(age)
        if self.solver == "block":
            return solve(problem, start).weights, problem
        draw = int(np.random.default_rng((self.seed, self.rounds)).integers(2**31))
        return coordinate_descent(problem, start, steps=5 * len(start), seed=draw), problem
