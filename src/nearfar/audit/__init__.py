"""Audit: which labels are probably wrong, shown, and corrected without losing anything.

`audit(embeddings, labels)` ranks; `audit_data(manifest, embeddings, folder)` writes audit.csv and a page;
`save_corrected(manifest, decisions, out)` applies what was decided.
"""

from __future__ import annotations

from nearfar.audit.csv_table import write_csv
from nearfar.audit.dataset import audit_data
from nearfar.audit.decisions import Change, apply_decisions, read_decisions, save_corrected
from nearfar.audit.page import write_page
from nearfar.audit.ranking import Audit, audit
from nearfar.metrics.detection import auroc, precision_at

__all__ = [
    "Audit",
    "Change",
    "apply_decisions",
    "audit",
    "audit_data",
    "auroc",
    "precision_at",
    "read_decisions",
    "save_corrected",
    "write_csv",
    "write_page",
]
