"""Measurements: each is a script that anyone can run again, and writes the page that quotes it."""
