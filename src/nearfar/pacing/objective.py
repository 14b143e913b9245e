"""The objective that BSPML (balanced self-paced metric learning) minimizes to find the sample weights.

Its value and gradient are computed from sums over each class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ClassSums:
    """Sums and means over the samples of each class, "class sums" for short. They are linear in the weights w.

    The objective is a function of these values, except for one term in w^2 xi+ (`WeightProblem.own_term`). xi+ and xi-
    measure how hard a sample is (see `nearfar.pacing.xi.hardness`).

    Attributes:
        mean: The mean weight of each class [C].
        pos: The sum of w xi+ over each class [C].
        neg: The mean of w xi- over each class [C].
    """

    mean: Floats
    pos: Floats
    neg: Floats


@dataclass(frozen=True, eq=False)
class WeightProblem:
    """The problem of minimizing Eq. 6 of BSPML over the weights w in [0, 1]^N, with fixed embeddings.

    (Zhang et al., AAAI 2023, arXiv 2211.11751.) For C classes with N_c samples each, the objective is

    L(w) = sum_c (1/N_c) sum_{a in c} w_a [(zeta_c - w_a)/(N_c - 1) xi+_a + 1/(C-1) sum_{k != c} zeta_k/N_k xi-_a]
           - age sum_c zeta_c/N_c + mu/(C-1) sum_{c < k} (zeta_c/N_c - zeta_k/N_k)^2

    zeta_c is the sum of the weights of class c. xi+_a and xi-_a measure how hard sample a is (see
    `nearfar.pacing.xi.hardness`). The paper prints Eq. 6 without the factor 1/N_c, but its gradient, Eq. 8, is correct
    only with this factor. For a class with a single sample, the term with xi+ is 0. All numbers are float64.

    Attributes:
        pos: xi+ of each sample [N].
        neg: xi- of each sample [N].
        labels: Class numbers from 0 to C - 1 [N]. There are at least 2 classes, and no class is empty.
        age: The age of self-paced learning, lambda in the paper. A larger age keeps more samples.
        mu: Weight of the last term, which balances the mean weights of the classes.

    >>> problem = WeightProblem.of([0.5, 0.5, 1.0, 2.0], [0.1, 0.1, 0.1, 0.3], [7, 7, 9, 9], age=1.0, mu=0.0)
    >>> round(problem.value(np.ones(4)), 6), problem.gradient(np.ones(4)).round(3).tolist()
    (0.3, [0.15, 0.15, 1.1, 1.2])
    """

    pos: Floats
    neg: Floats
    labels: Ints
    age: float
    mu: float

    @classmethod
    def of(cls, pos: ArrayLike, neg: ArrayLike, labels: ArrayLike, *, age: float, mu: float) -> WeightProblem:
        """Create the problem from labels that may be arbitrary integers, with at least two classes."""
        ids, number = np.unique(np.asarray(labels), return_inverse=True)
        if len(ids) < 2:
            raise ValueError(f"labels must have at least 2 classes, got {len(ids)}")
        if not mu >= 0:
            raise ValueError(f"mu must be at least 0, got {mu}")
        return cls(np.asarray(pos, np.float64), np.asarray(neg, np.float64), number.astype(np.int64), age, mu)

    def at_age(self, age: float) -> WeightProblem:
        """Return a copy of the problem with another age."""
        return replace(self, age=age)

    @cached_property
    def sizes(self) -> Floats:
        """Return the number of samples N_c of every class, [C]."""
        return np.bincount(self.labels).astype(np.float64)

    @property
    def classes(self) -> int:
        return len(self.sizes)

    @cached_property
    def pair_norm(self) -> Floats:
        """Return 1 / (N_c - 1) for every class [C], or 0 for a class with a single sample, which has no pairs."""
        return np.where(self.sizes > 1, 1 / np.maximum(self.sizes - 1, 1), 0.0)

    def sums(self, w: Floats) -> ClassSums:
        """Return the class sums for weights w [N]."""
        return self.sums_of(self.labels, w, self.pos, self.neg)

    def sums_of(self, labels: Ints, w: Floats, pos: Floats, neg: Floats) -> ClassSums:
        """Return the class sums over a subset of the samples, given by their labels, weights, xi+ and xi-."""
        sums = (np.bincount(labels, values, self.classes).astype(np.float64) for values in (w, w * pos, w * neg))
        zeta, positive, negative = sums
        return ClassSums(zeta / self.sizes, positive, negative / self.sizes)

    def quadratic_part(self, sums: ClassSums, own: float) -> float:
        """Return the part of the objective that is quadratic in the weights.

        It is computed from the class sums and from `own`, the value of `own_term`.
        """
        mean, others = sums.mean, self.classes - 1
        total = mean.sum()
        positives = (mean * sums.pos * self.pair_norm).sum() - own
        negatives = (total * sums.neg.sum() - (mean * sums.neg).sum()) / others
        balance = self.mu / others * (self.classes * (mean * mean).sum() - total * total)
        return float(positives + negatives + balance)

    def value(self, w: Floats) -> float:
        """Return the objective L(w)."""
        sums = self.sums(w)
        return self.quadratic_part(sums, self.own_term(w)) - self.age * float(sums.mean.sum())

    def own_term(self, w: Floats) -> float:
        """Return the sum over samples a of w_a^2 xi+_a / (N_c (N_c - 1)), where N_c is the size of the sample's class.

        `quadratic_part` subtracts it, because the class sums also pair each sample with itself.
        """
        return float((w * w * self.pos * (self.pair_norm / self.sizes)[self.labels]).sum())

    def hardness(self, w: Floats, sums: ClassSums | None = None) -> Floats:
        """Return the cost of every sample given the weights of the other samples, [N].

        This is the part G_p + G_n of the gradient in BSPML, Eq. 8, computed from all samples.
        """
        sums = self.sums(w) if sums is None else sums
        c, others = self.labels, self.classes - 1
        positives = (sums.pos[c] - w * self.pos + (sums.mean[c] * self.sizes[c] - w) * self.pos) * self.pair_norm[c]
        negatives = (sums.neg.sum() - sums.neg)[c] + (sums.mean.sum() - sums.mean)[c] * self.neg
        result: Floats = positives + negatives / others
        return result

    def balance(self, sums: ClassSums) -> Floats:
        """Return the part of the gradient that balances the classes, for every class [C] (G_b in BSPML, Eq. 8).

        It is 2 mu times the difference between the mean weight of the class and the average over the other classes.
        """
        others = (sums.mean.sum() - sums.mean) / (self.classes - 1)
        result: Floats = 2 * self.mu * (sums.mean - others)
        return result

    def gradient(self, w: Floats) -> Floats:
        """Return the gradient of the objective with respect to the weights, [N] (BSPML, Eq. 8, with all samples).

        For a sample of class c, it is (its `hardness` + the `balance` of class c - age) / N_c.
        """
        sums = self.sums(w)
        slope: Floats = (self.hardness(w, sums) + self.balance(sums)[self.labels] - self.age) / self.sizes[self.labels]
        return slope

    def residual(self, w: Floats) -> float:
        """Return max |w - clip(w - N_c dL/dw, 0, 1)| over the samples, where N_c is the size of the class.

        It is 0 if and only if w is stationary (BSPML, Definition 1).
        """
        step = self.gradient(w) * self.sizes[self.labels]
        return float(np.abs(w - np.clip(w - step, 0, 1)).max())


def class_means(w: ArrayLike, labels: ArrayLike) -> Floats:
    """Return the mean weight of every class in `labels`, [C]."""
    number = np.unique(np.asarray(labels), return_inverse=True)[1]
    means: Floats = np.bincount(number, np.asarray(w, np.float64)) / np.bincount(number)
    return means


def maw(w: ArrayLike, labels: ArrayLike) -> float:
    """Return MAW, the mean over classes of the mean weight of a class (BSPML, Eq. 14).

    Classes count equally, whatever their size.
    """
    return float(class_means(w, labels).mean())


def sdaw(w: ArrayLike, labels: ArrayLike) -> float:
    """Return SDAW, the standard deviation over classes of the mean weight of a class (BSPML, Eq. 14; divisor C)."""
    return float(class_means(w, labels).std())
