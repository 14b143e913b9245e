"""Configuration: the settings of a run, how they are merged, and the recipes."""
