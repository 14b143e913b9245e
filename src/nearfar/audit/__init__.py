"""Find wrong labels, near duplicates and outliers, review them on a page, and write a corrected manifest.

`audit(embeddings, labels)` ranks the samples. `audit_data(manifest, embeddings, folder)` also writes tables and a page.
`save_corrected(manifest, decisions, out)` writes the corrected manifest and a record of every change.
"""

from __future__ import annotations

from nearfar.audit.csv_table import write_csv
from nearfar.audit.dataset import audit_data
from nearfar.audit.decisions import Change, apply_decisions, read_decisions, save_corrected
from nearfar.audit.near_duplicates import DuplicateGroup, Neighborhoods, find_near_duplicates
from nearfar.audit.page import write_page
from nearfar.audit.ranking import Audit, audit
from nearfar.metrics.detection import auroc, precision_at

__all__ = [
    "Audit",
    "Change",
    "DuplicateGroup",
    "Neighborhoods",
    "apply_decisions",
    "audit",
    "audit_data",
    "auroc",
    "find_near_duplicates",
    "precision_at",
    "read_decisions",
    "save_corrected",
    "write_csv",
    "write_page",
]
