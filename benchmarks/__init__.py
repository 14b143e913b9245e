"""Measurement scripts. Each can be run with `python -m benchmarks.NAME` and writes the docs page that quotes it."""
