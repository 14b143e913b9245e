"""Suites compare methods under the same conditions: run the cells, then make tables and figures."""
