"""The benchmark of compressed indexes runs on few vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.compression import main


def test_the_report_has_a_section_of_each_dataset_with_every_index(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = tmp_path / "own.npz"
    np.savez(data, features=rng.normal(size=(600, 24)).astype(np.float32), labels=np.arange(600) % 6)
    report = tmp_path / "report.md"
    main(["random", str(data), "--count", "3000", "--dim", "16", "--queries", "8", "--markdown", str(report)])
    first, second = report.read_text().split("## ")[1:]
    assert first.startswith("3,000 vectors of 16 dimensions: random vectors")
    assert second.startswith("592 vectors of 24 dimensions: own.npz")
    for section, dim in ((first, 16), (second, 24)):
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if "|" in line][2:]
        assert [row[0].split(",")[0] for row in rows] == [
            "exact",
            "int8",
            "binary",
            *2 * ["faiss SQ8"],
            *2 * ["faiss PQ"],
        ]
        assert [row[1] for row in rows] == [str(n) for n in (4 * dim, dim, dim // 8, dim, dim, dim // 8, dim // 8)]
        recalls = [float(row[2]) for row in rows]
        assert recalls[0] == 100.0
        assert recalls[6] > recalls[5], "re-scoring must help PQ"


def test_images_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "pixels.npz"
    np.savez(data, images=np.zeros((20, 8, 8), np.uint8), labels=np.arange(20) % 2)
    with pytest.raises(SystemExit, match="neither vectors nor texts"):
        main([str(data)])
