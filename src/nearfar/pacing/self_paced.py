"""Balanced self-paced weights: BSPML, and with mu = 0 SPMS."""

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

    Each update computes xi+ and xi- over the whole training set and solves for the weights. Samples that are far from
    their class or close to another class get small weights. It is meant for `multi-similarity` with
    weighting="outside" and threshold=1 (Eq. 7), and works with every loss that takes weights. By default the
    first update is after one epoch with all weights 1 (Algorithm 1), and then after every epoch.

    The objective, alpha, beta, threshold, and an age that grows by a factor up to a limit are from the paper. It states
    no values for growth, most and mu; the defaults are ours, as is the option share.

    Args:
        samples: Number of training samples.
        classes: Number of training classes.
        share: Fraction of the samples to keep in the first round.
        age: The age (the paper's lambda) of the first round, instead of `share`. The solver then starts from the
            current weights.
        growth: Factor by which the share or age is multiplied after each round.
        most: Upper limit of the share (default 0.95) or age.
        noise_rate: Expected fraction of wrong labels, instead of `share` and `most`: every round keeps 1 - noise_rate.
        mu: Weight of the balance between classes. 0 gives SPMS.
        rule: "exact" searches for the age whose solution keeps the share. "quantile" takes the age from
            `select_easiest`, whose solution keeps more samples.
        solver: "block" is ours (see `nearfar.pacing.solver`). "coordinate" is the paper's Algorithm 3 with 5 N
            steps; it always uses the rule "quantile".
        alpha: Scale of the positives in xi+.
        beta: Scale of the negatives in xi-.
        threshold: The paper's rho in xi+ and xi-.
        warm_up: See `Pacer`.
        every: See `Pacer`.
        seed: Seed of the solver "coordinate".
        memory_mb: Memory for a block of similarities in MiB.
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
        """Solve for the weights. Also log lambda (the age), the objective and the residual of the solver."""
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
        """Return the weights of this round, and the problem at its age."""
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
