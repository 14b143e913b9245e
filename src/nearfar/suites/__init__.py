"""Suites compare methods under the same conditions. A suite is run, and then shown as tables and figures.

A suite consists of cells. A cell is a combination of dataset, method, seed and value of the swept setting.
"""
