"""nearfar: deep metric learning on PyTorch."""

__version__ = "0.1.0"
