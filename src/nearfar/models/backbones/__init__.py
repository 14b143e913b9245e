"""Backbones: one module for each network."""
