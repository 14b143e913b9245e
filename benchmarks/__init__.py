"""Measurement scripts. Run one with `python -m benchmarks.NAME`; most can write their page in docs/benchmarks."""
