"""Exact retrieval positions without a full sort."""
