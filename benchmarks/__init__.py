"""Measurement scripts. Run one with `python -m benchmarks.NAME`. Most scripts can write a page for docs/benchmarks."""
