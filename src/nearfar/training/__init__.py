"""Training: a configuration, the loop, and the directory of a run."""

from nearfar.config.merge import resolve
from nearfar.config.schema import Config
from nearfar.runs import Run, load_embedder, save_embedder
from nearfar.training.trainer import train

__all__ = ["Config", "Run", "load_embedder", "resolve", "save_embedder", "train"]
