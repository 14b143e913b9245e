"""Which recipe suits your data: short races on held-out classes, and a recommendation with its interval."""

from nearfar.advise.data import Course, open_course
from nearfar.advise.entrant import DEFAULT, Entrant, parse_entrants
from nearfar.advise.halving import race_all
from nearfar.advise.verdict import Verdict, verdict_of

__all__ = ["DEFAULT", "Course", "Entrant", "Verdict", "open_course", "parse_entrants", "race_all", "verdict_of"]
