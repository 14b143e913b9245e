"""Search: an index of embeddings, queries by image, vector or id, and exports to other systems."""

from nearfar.search.encoder import Encoder
from nearfar.search.index import Index
from nearfar.search.loading import load
from nearfar.search.part import Part
from nearfar.search.run_index import open_index

__all__ = ["Encoder", "Index", "Part", "load", "open_index"]
