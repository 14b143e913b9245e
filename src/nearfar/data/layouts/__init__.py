"""Data layouts: one module for each official dataset layout, class folders and archives."""
