"""Nearest neighbors, matching pairs and k-means. The API is that of pytorch-metric-learning's `utils.inference`."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import torch
from torch import Tensor, nn

from nearfar.compat.distances import BaseDistance, BatchedDistance, CosineSimilarity
from nearfar.compat.utils import common_functions as c_f


class MatchFinder:
    """Decide which pairs match.

    With a distance, the pairs at a distance of at most `threshold` match. With a similarity, the pairs with a
    similarity of at least `threshold` match.
    """

    def __init__(self, distance: BaseDistance, threshold: float | None = None) -> None:
        self.distance, self.threshold = distance, threshold

    def matches(self, values: Tensor, threshold: float | None) -> Tensor:
        """Return the mask of the distances or similarities that are matches."""
        limit = self.threshold if threshold is None else threshold
        if limit is None:
            raise ValueError("threshold is None: pass a threshold to this method or to MatchFinder")
        return values >= limit if self.distance.is_inverted else values <= limit

    @torch.no_grad()
    def get_matching_pairs(
        self,
        query_emb: Tensor,
        ref_emb: Tensor | None = None,
        threshold: float | None = None,
        return_tuples: bool = False,
    ) -> Any:
        """Return the boolean matrix of matches [Q, R]. With `return_tuples`, return a list of index pairs instead."""
        found = self.matches(self.distance(query_emb, ref_emb), threshold).cpu().numpy()
        return list(zip(*np.where(found), strict=True)) if return_tuples else found

    @torch.no_grad()
    def is_match(self, x: Tensor, y: Tensor, threshold: float | None = None) -> Any:
        """Return whether the i-th vectors of x and y match, for each i."""
        found = self.matches(self.distance.pairwise_distance(x, y), threshold)
        return bool(found) if found.numel() == 1 else found.cpu().numpy()


class FaissKNN:
    """Find the nearest neighbors with a faiss index. The default index searches exactly, by squared Euclidean distance.

    Args:
        reset_before: If True, each call starts with a new, empty index.
        reset_after: If True, each call deletes the index when it is done.
        index_init_fn: A function that takes the dimension and creates the index.
        gpus: Not supported: nearfar uses faiss on the CPU.
    """

    def __init__(
        self, reset_before: bool = True, reset_after: bool = True, index_init_fn: Any = None, gpus: Any = None
    ) -> None:
        if gpus is not None:
            raise ValueError(f"FaissKNN: gpus={gpus!r} is not supported by nearfar.compat: remove it")
        self.index: Any = None
        self.reset_before, self.reset_after = reset_before, reset_after
        self.index_init_fn = faiss.IndexFlatL2 if index_init_fn is None else index_init_fn

    def __call__(
        self, query: Tensor, k: int, reference: Tensor | None = None, ref_includes_query: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the distances and the indices [Q, k] of the k nearest references of each query.

        Set `ref_includes_query` if the references begin with the queries. A query is then not its own neighbor.
        """
        c_f.LOGGER.info(f"searching for the {k} nearest neighbors in {query.shape[1]} dimensions")
        if self.reset_before:
            self.index = self.index_init_fn(query.shape[1])
        if self.index is None:
            raise ValueError("FaissKNN has no index: call train() or load() first, or use reset_before=True")
        if reference is not None:
            self.index.add(as_array(reference))
        found = self.index.search(as_array(query), k + int(ref_includes_query))
        if self.reset_after:
            self.reset()
        distances, indices = (torch.from_numpy(part).to(query.device) for part in found)
        return without_itself(distances, indices) if ref_includes_query else (distances, indices)

    def train(self, embeddings: Any) -> None:
        """Create a new index from these embeddings."""
        self.index = self.index_init_fn(embeddings.shape[1])
        self.add(embeddings)

    def add(self, embeddings: Any) -> None:
        """Add embeddings to the index."""
        self.index.add(as_array(embeddings))

    def save(self, filename: str) -> None:
        """Write the index to a file."""
        faiss.write_index(self.index, filename)

    def load(self, filename: str) -> None:
        """Read the index from a file."""
        self.index = faiss.read_index(filename)

    def reset(self) -> None:
        """Delete the index."""
        self.index = None


class CustomKNN:
    """Find the nearest neighbors with any distance, in blocks of `batch_size` queries."""

    def __init__(self, distance: BaseDistance, batch_size: int | None = None) -> None:
        self.distance, self.batch_size = distance, batch_size

    def __call__(
        self, query: Tensor, k: int, reference: Tensor, ref_includes_query: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the distances and the indices [Q, k], as `FaissKNN` does."""
        found: list[tuple[Tensor, Tensor]] = []

        def keep(block: Tensor, start: int, end: int) -> None:
            values, indices = block.topk(k + int(ref_includes_query), dim=1, largest=self.distance.is_inverted)
            found.append((values, indices))

        BatchedDistance(self.distance, keep, self.batch_size or len(query))(query, reference)
        distances, indices = (torch.cat(parts) for parts in zip(*found, strict=True))
        return without_itself(distances, indices) if ref_includes_query else (distances, indices)


def without_itself(distances: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Remove each query from its own neighbors. If it is not among them, remove the last neighbor instead."""
    own = indices == torch.arange(len(indices), device=indices.device)[:, None]
    own[:, -1] |= ~own.any(1)
    kept = ~own
    return distances[kept].view(len(indices), -1), indices[kept].view(len(indices), -1)


class FaissKMeans:
    """k-means with faiss. The arguments are those of `faiss.Kmeans`."""

    def __init__(self, **kwargs: Any) -> None:
        self.kwargs = kwargs

    def __call__(self, x: Tensor, nmb_clusters: int) -> Tensor:
        """Return the cluster of each vector. The result has shape [N]."""
        rows = as_array(x)
        kmeans = faiss.Kmeans(rows.shape[1], nmb_clusters, **self.kwargs)
        kmeans.train(rows)
        return torch.from_numpy(kmeans.index.search(rows, 1)[1][:, 0]).to(x.device)


def as_array(x: Any) -> Any:
    """Return vectors as a contiguous float32 array."""
    array = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    return np.ascontiguousarray(array, dtype=np.float32)


class InferenceModel:
    """Embed inputs with a trained network, and find matches and nearest neighbors.

    Args:
        trunk: The network.
        embedder: A second network, which is applied to the output of `trunk`, or None.
        match_finder: The MatchFinder. By default, two inputs match if their cosine is at least 0.9.
        normalize_embeddings: Whether to scale embeddings to unit length.
        knn_func: The function that finds neighbors, by default FaissKNN.
        data_device: The device that the inputs are moved to, by default a GPU if there is one.
        dtype: The dtype that the inputs are converted to, or None to keep theirs.
    """

    def __init__(
        self,
        trunk: nn.Module,
        embedder: nn.Module | None = None,
        match_finder: MatchFinder | None = None,
        normalize_embeddings: bool = True,
        knn_func: Any = None,
        data_device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.trunk, self.embedder = trunk, nn.Identity() if embedder is None else embedder
        self.match_finder = MatchFinder(CosineSimilarity(), 0.9) if match_finder is None else match_finder
        self.normalize_embeddings, self.dtype = normalize_embeddings, dtype
        self.knn_func = FaissKNN(reset_before=False, reset_after=False) if knn_func is None else knn_func
        self.data_device = data_device or ("cuda" if torch.cuda.is_available() else "cpu")

    @torch.no_grad()
    def get_embeddings(self, x: Any) -> Tensor:
        """Embed a tensor of inputs, or a list of tensors."""
        x = _stacked(x)
        if isinstance(x, Tensor):
            x = x.to(self.data_device, self.dtype)
        self.trunk.eval()
        self.embedder.eval()
        embeddings: Tensor = self.embedder(self.trunk(x))
        return nn.functional.normalize(embeddings, dim=1) if self.normalize_embeddings else embeddings

    def get_embeddings_from_tensor_or_dataset(self, inputs: Any, batch_size: int) -> Tensor:
        """Embed a tensor, a list, or a dataset of pairs (input, label), in batches."""
        inputs = _stacked(inputs)
        if isinstance(inputs, Tensor | list):
            blocks = (inputs[start : start + batch_size] for start in range(0, len(inputs), batch_size))
        elif isinstance(inputs, torch.utils.data.Dataset):
            blocks = (batch for batch, _ in torch.utils.data.DataLoader(inputs, batch_size=batch_size))
        else:
            raise TypeError(f"inputs must be a tensor, a list or a dataset, got {type(inputs).__name__}")
        return torch.cat([self.get_embeddings(block) for block in blocks])

    def train_knn(self, inputs: Any, batch_size: int = 64) -> None:
        """Create a new index from the embeddings of these inputs."""
        self.knn_func.train(self.get_embeddings_from_tensor_or_dataset(inputs, batch_size))

    def add_to_knn(self, inputs: Any, batch_size: int = 64) -> None:
        """Add the embeddings of these inputs to the index."""
        self.knn_func.add(self.get_embeddings_from_tensor_or_dataset(inputs, batch_size))

    def get_nearest_neighbors(self, query: Any, k: int) -> Any:
        """Return the distances and the indices [Q, k] of the nearest neighbors in the index."""
        return self.knn_func(self.get_embeddings(query), k)

    def get_matches(
        self, query: Any, ref: Any = None, threshold: float | None = None, return_tuples: bool = False
    ) -> Any:
        """Return the matches between queries and references. By default, the references are the queries."""
        embeddings = self.get_embeddings(query)
        refs = embeddings if ref is None else self.get_embeddings(ref)
        return self.match_finder.get_matching_pairs(embeddings, refs, threshold, return_tuples)

    def is_match(self, x: Any, y: Any, threshold: float | None = None) -> Any:
        """Return whether the i-th inputs of x and y match, for each i."""
        return self.match_finder.is_match(self.get_embeddings(x), self.get_embeddings(y), threshold)

    def save_knn_func(self, filename: str) -> None:
        """Write the index to a file."""
        self.knn_func.save(filename)

    def load_knn_func(self, filename: str) -> None:
        """Read the index from a file."""
        self.knn_func.load(filename)


class LogitGetter(nn.Module):
    """Compute the scores of all classes for each embedding. `classifier` is a loss with proxies."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.classifier.get_logits(embeddings)  # type: ignore[operator]
        return logits


def _stacked(x: Any) -> Any:
    return torch.stack(x) if isinstance(x, list) and all(isinstance(part, Tensor) for part in x) else x
