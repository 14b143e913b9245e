"""As there, the place of accuracy_calculator."""
