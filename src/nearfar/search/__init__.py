"""Search: an index of embeddings, queries that are pictures, vectors or ids, and exports to other systems."""

from nearfar.search.encoder import Encoder
from nearfar.search.index import Index, Part
from nearfar.search.opening import open_index

__all__ = ["Encoder", "Index", "Part", "open_index"]
