"""Training: a configuration, the loop, and the directory of a run."""

from nearfar.training.config import Config
from nearfar.training.loop import train
from nearfar.training.resolve import resolve
from nearfar.training.run import Run, load_embedder, save_embedder

__all__ = ["Config", "Run", "load_embedder", "resolve", "save_embedder", "train"]
