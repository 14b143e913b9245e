"""Recommend a recipe for a dataset from short trials on held-out classes."""

from nearfar.advise.candidate import DEFAULT, Candidate, parse_candidates
from nearfar.advise.data import TrialData, open_trial_data
from nearfar.advise.recommendation import Recommendation, recommend
from nearfar.advise.successive_halving import run_trials

__all__ = [
    "DEFAULT",
    "Candidate",
    "Recommendation",
    "TrialData",
    "open_trial_data",
    "parse_candidates",
    "recommend",
    "run_trials",
]
