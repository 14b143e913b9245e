"""Calibration of a model: how to interpret its distances, stored as a JSON file beside the model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from nearfar.errors import NearfarError
from nearfar.files import atomic
from nearfar.metrics.probability import Curve, ReliabilityBin, curve_from_dict
from nearfar.metrics.verification import OperatingPoint
from nearfar.model import Model
from nearfar.model_kinds import IndexModel, read_json
from nearfar.models import Embedder
from nearfar.training.embedder_file import digest_weights
from nearfar.validation import Floats

CALIBRATION_FILE = "calibration.json"
FORMAT, VERSION = "nearfar calibration", 2
REMEDY = "run `nearfar calibrate` again"


@dataclass(frozen=True)
class Estimate:
    """A measured value with its 95% confidence interval [low, high] from a bootstrap over classes."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CalibrationError(Estimate):
    """An expected calibration error with its 95% confidence interval; see `nearfar.calibration.error.estimate_error`.

    Attributes:
        chance: The mean error that perfect probabilities would have on the same number of classes. Errors up to about
            this value cannot be distinguished from 0.
    """

    chance: float


@dataclass(frozen=True)
class Verification:
    """How well the distance between two samples tells whether they have the same class.

    A threshold accepts a pair as the same class if its distance is small enough. The false match rate (FMR) is the
    fraction of pairs of different classes that are accepted. The false non-match rate (FNMR) is the fraction of pairs
    of the same class that are rejected.

    Attributes:
        auroc: The probability that two samples of one class are nearer than two samples of different classes.
        equal_error: The error rate at the threshold where FMR and FNMR are equal.
        points: Thresholds for the requested FMRs.
        roc: Pairs (FMR, FNMR) at many thresholds, for a plot.
    """

    auroc: float
    equal_error: float
    points: tuple[OperatingPoint, ...]
    roc: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class NeighborProbability:
    """The probability that a sample found by a search has the class of the query.

    Attributes:
        curve: The function from the distance to the probability.
        neighbors: Number of nearest neighbors of each query that the curve was fitted on.
        error: The expected calibration error, measured on classes that were not used for fitting.
        reliability: Predicted and observed frequencies, measured in the same way.
    """

    curve: Curve
    neighbors: int
    error: CalibrationError
    reliability: tuple[ReliabilityBin, ...]


@dataclass(frozen=True)
class OpenSet:
    """The classification of a query by the votes of its neighbors, with an "unknown" class.

    Attributes:
        curve: The function from the score of the best class to the probability that this class is right, assuming that
            the query has one of the known classes.
        threshold: A query is unknown if its best score is below this value, which 95% of the queries of known classes
            reach.
        accuracy: The fraction of queries of known classes whose best class is right.
        error: The expected calibration error of `curve`.
        auroc: The probability that a query of a known class has a higher score than one of an unknown class.
        fpr: The fraction of queries of unknown classes that are accepted at a threshold that accepts 95% of the queries
            of known classes.
        accepted: The fraction of queries of known classes that a threshold accepts if it is chosen on other classes.
        rejected: The fraction of queries of unknown classes that the same threshold rejects.
    """

    curve: Curve
    threshold: float
    accuracy: float
    error: CalibrationError
    auroc: Estimate
    fpr: Estimate
    accepted: float
    rejected: float


@dataclass(frozen=True)
class Calibration:
    """Thresholds and probabilities for the distances of a model, usually measured on classes it was not trained on.

    Attributes:
        model: The sha256 of the weights, "" if unknown.
        dim: Number of dimensions of the embeddings. Truncated embeddings need a separate calibration.
        data: Name of the data.
        split: The split that was used.
        samples: Number of samples.
        classes: Number of classes.
        trained: Number of these classes that the model was trained on. If there are any, all figures are too
            optimistic for new classes.
        verification: See `Verification`.
        same: See `NeighborProbability`.
        open_set: See `OpenSet`.
    """

    model: str
    dim: int
    data: str
    split: str
    samples: int
    classes: int
    trained: int
    verification: Verification
    same: NeighborProbability
    open_set: OpenSet

    def probability(self, distance: ArrayLike) -> Floats:
        """Return the probability that a search result at this distance (1 - cosine) has the class of the query."""
        return self.same.curve(distance)

    def threshold(self, fmr: float) -> OperatingPoint:
        """Return the distance threshold for the false match rate `fmr`, with its error rates.

        Raises:
            NearfarError: If this rate was not measured.
        """
        for point in self.verification.points:
            if abs(point.fmr - fmr) < 1e-12:
                return point
        known = ", ".join(f"{point.fmr:g}" for point in self.verification.points)
        only = f", only for {known}" if known else ""
        raise NearfarError(f"no threshold was measured for fmr={fmr:g}{only}: calibrate with --fmr {fmr:g}")

    def save(self, path: Path) -> Path:
        """Write the calibration as JSON atomically and return the path."""
        tree = {"format": FORMAT, "version": VERSION, **asdict(self)}
        for key, part in (("same", self.same), ("open_set", self.open_set)):
            tree[key]["curve"] = part.curve.to_dict()
        with atomic(path) as draft:
            draft.write_text(json.dumps(tree, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        return path


def load_calibration(model: Model, embedder: Embedder | None = None) -> Calibration | None:
    """Return the calibration of a model, or None if the model was not calibrated for its number of dimensions.

    An index directory without a calibration of its own uses that of its model.

    Args:
        model: The model.
        embedder: The network of the model, if it is already loaded.

    Raises:
        NearfarError: If the file is damaged, or belongs to other weights.
    """
    path = model.path / CALIBRATION_FILE
    if not path.is_file():
        return load_calibration(model.model, embedder) if isinstance(model, IndexModel) else None
    calibration, network = read_calibration(path), embedder or model.embedder()
    if calibration.model and calibration.model != digest_weights(network):
        raise NearfarError(f"{path} was measured with weights other than those of {model.path}: {REMEDY}")
    return calibration if calibration.dim == network.dim else None


def read_calibration(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        NearfarError: If the file is missing or damaged, or has another format.
    """
    tree = read_json(path, REMEDY)
    if tree.get("format") != FORMAT or tree.get("version") != VERSION:
        raise NearfarError(f"{path} is not a calibration that this version of nearfar can read: {REMEDY}")
    try:
        return _from_dict(tree)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise NearfarError(f"{path} is damaged ({type(error).__name__}: {error}): {REMEDY}") from None


def _from_dict(tree: dict[str, Any]) -> Calibration:
    verification, same, open_set = (dict(tree[key]) for key in ("verification", "same", "open_set"))
    points = tuple(
        OperatingPoint(
            float(point["fmr"]),
            float(point["threshold"]),
            _pair(point["threshold_interval"]),
            float(point["fnmr"]),
            _pair(point["fnmr_interval"]),
        )
        for point in verification["points"]
    )
    bins = tuple(
        ReliabilityBin(float(part["predicted"]), float(part["observed"]), int(part["count"]))
        for part in same["reliability"]
    )
    return Calibration(
        model=str(tree["model"]),
        dim=int(tree["dim"]),
        data=str(tree["data"]),
        split=str(tree["split"]),
        samples=int(tree["samples"]),
        classes=int(tree["classes"]),
        trained=int(tree["trained"]),
        verification=Verification(
            float(verification["auroc"]),
            float(verification["equal_error"]),
            points,
            tuple(_pair(pair) for pair in verification["roc"]),
        ),
        same=NeighborProbability(curve_from_dict(same["curve"]), int(same["neighbors"]), _error(same["error"]), bins),
        open_set=OpenSet(
            curve=curve_from_dict(open_set["curve"]),
            error=_error(open_set["error"]),
            auroc=_estimate(open_set["auroc"]),
            fpr=_estimate(open_set["fpr"]),
            **{name: float(open_set[name]) for name in ("threshold", "accuracy", "accepted", "rejected")},
        ),
    )


def _pair(values: Any) -> tuple[float, float]:
    low, high = values
    return float(low), float(high)


def _estimate(tree: dict[str, Any]) -> Estimate:
    return Estimate(float(tree["value"]), float(tree["low"]), float(tree["high"]))


def _error(tree: dict[str, Any]) -> CalibrationError:
    return CalibrationError(float(tree["value"]), float(tree["low"]), float(tree["high"]), float(tree["chance"]))
