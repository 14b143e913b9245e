"""Bad input is a ValueError that names the argument and what was wrong with it."""

import warnings

import numpy as np
import pytest
import torch

from nearfar.metrics import evaluate
from nearfar.metrics.names import expand_names
from nearfar.metrics.protocols import class_disjoint_split, concatenate, evaluate_as, mlrc_folds, same_camera

X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
Y = [0, 0, 1, 1, 2, 2]
BROKEN = X.copy()
BROKEN[4, 1] = np.nan
INFINITE = X.copy()
INFINITE[0, 0] = np.inf

CASES = {
    "labels too short": ((X, Y[:5]), {}, r"labels must have one entry for each of the 6 embeddings.*\(5,\)"),
    "labels as floats": ((X, np.array(Y, dtype=np.float32)), {}, "labels must be integers, strings.*float32"),
    "labels as python floats": ((X, [0.5] * 6), {}, "labels must be integers, strings"),
    "labels of mixed kinds": (
        (X, np.array([0, "a", 1, 1, 2, 2], dtype=object)),
        {},
        "labels must be integers, strings",
    ),
    "labels not multi-hot": ((X, np.arange(12).reshape(6, 2)), {}, "labels of shape .* must be multi-hot"),
    "ragged labels": ((X, [[1], [1, 0], [1], [1], [1], [1]]), {}, "labels must be"),
    "one dimension": ((X[0], Y), {}, r"embeddings must have shape \[N, d\].*\(3,\)"),
    "no rows": ((X[:0], []), {}, r"embeddings must have shape \[N, d\].*\(0, 3\)"),
    "words": ((["a", "b"], [0, 0]), {}, r"embeddings must be an array of numbers of shape \[N, d\]"),
    "complex": ((X.astype(complex), Y), {}, "embeddings must be real"),
    "NaN": ((BROKEN, Y), {}, "embeddings has NaN or infinity in 1 of 6 vectors, first in vector 4"),
    "infinity": ((INFINITE, Y), {}, "embeddings has NaN or infinity in 1 of 6 vectors, first in vector 0"),
    "too long": ((X * np.float32(1e20), Y), {}, "embeddings has a vector of norm"),
    "query NaN": ((X, Y), {"queries": (BROKEN, Y)}, r"queries\[0\] has NaN"),
    "no queries": ((X, Y), {"queries": (X[:0], [])}, r"queries\[0\] must have shape \[N, d\] with N and d at least 1"),
    "queries without labels": ((X, Y), {"queries": X}, r"queries must be a pair"),
    "query dimension": (
        (X, Y),
        {"queries": (X[:, :2], Y)},
        r"queries\[0\] has dimension 2, but embeddings have dimension 3",
    ),
    "query labels": ((X, Y), {"queries": (X, Y[:2])}, r"queries\[1\] must have one entry for each of the 6"),
    "query label kind": ((X, Y), {"queries": (X, list("aabbcc"))}, "must be of one kind"),
    "query label width": (
        (X, np.eye(6, dtype=int)),
        {"queries": (X, np.ones((6, 2), dtype=int))},
        "must be of one kind",
    ),
    "k of zero": ((X, Y), {"ks": (0, 1)}, r"ks must be one or more positive integers, got \(0, 1\)"),
    "k of a half": ((X, Y), {"ks": (1.5,)}, "ks must be"),
    "no ks": ((X, Y), {"ks": ()}, "ks must be"),
    "no metrics": ((X, Y), {"metrics": ()}, "metrics is empty"),
    "unknown metric": ((X, Y), {"metrics": "recal@1"}, "unknown name 'recal@1'; did you mean 'recall@1'"),
    "unknown metric 2": ((X, Y), {"metrics": "NDGC"}, "did you mean 'ndcg'"),
    "cut of zero": ((X, Y), {"metrics": "recall@0"}, "unknown name 'recall@0'"),
    "distance": ((X, Y), {"distance": "manhattan"}, "distance must be one of 'cosine', 'euclidean', got 'manhattan'"),
    "memory": ((X, Y), {"memory_mb": 0}, "memory_mb must be at least 1"),
    "no seeds": ((X, Y), {"metrics": "nmi", "seeds": ()}, "seeds is empty"),
    "multi-hot clustering": ((X, np.eye(6, dtype=int)), {"metrics": "nmi"}, "nmi needs one label per sample"),
    "one class": ((X, [1] * 6), {"metrics": "silhouette"}, "silhouette needs at least two classes"),
    "ignore length": ((X, Y), {"ignore": [[0]]}, "ignore must have one index list for each of the 6 queries, got 1"),
    "ignore range": ((X, Y), {"ignore": [[6]] * 6}, r"ignore\[0\] has indices outside the gallery of 6"),
    "ignore floats": ((X, Y), {"ignore": [[0.5]] * 6}, r"ignore\[0\] must be a list of gallery indices"),
    "ignore mask": ((X, Y), {"ignore": np.zeros((6, 5), dtype=bool)}, r"ignore as a mask must have shape \(6, 6\)"),
    "nobody has a positive": ((X, range(6)), {}, "none of the 6 queries has a positive in the gallery of 6"),
    "index": ((X, Y), {"index": object()}, "index must be a faiss index"),
    "sample": ((X, Y), {"index_sample": 0}, "index_sample must be at least 1"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name):
    arguments, options, message = CASES[name]
    with pytest.raises(ValueError, match=message):
        evaluate(*arguments, **options)


def test_bad_protocols():
    with pytest.raises(ValueError, match="benchmark must be one of 'cub'"):
        evaluate_as("imagenet", X, Y)
    with pytest.raises(ValueError, match="in-shop has separate query and gallery sets"):
        evaluate_as("in-shop", X, Y)
    with pytest.raises(ValueError, match="sop compares every sample with all others"):
        evaluate_as("sop", X, Y, queries=(X, Y))
    with pytest.raises(ValueError, match=r"folds must be between 2 and the number of classes \(3\), got 4"):
        mlrc_folds(Y)
    with pytest.raises(ValueError, match="fraction"):
        class_disjoint_split(Y, fraction=1.0)
    with pytest.raises(ValueError, match="needs at least two"):
        class_disjoint_split([1, 1])
    with pytest.raises(ValueError, match="same samples"):
        concatenate([X, X[:2]])
    with pytest.raises(ValueError, match="models is empty"):
        concatenate([])
    with pytest.raises(ValueError, match="labels and cameras must have the same length"):
        same_camera([1, 2], [1])


def test_a_single_row_or_label_column_says_what_to_do():
    with pytest.raises(ValueError, match=r"labels has shape \(6, 1\): pass class ids of shape \[N\]"):
        evaluate(X, torch.tensor(Y)[:, None])


def test_legal_input_that_looks_odd():
    assert evaluate(X.tolist(), Y, ks=1, metrics="recall").keys() == {"recall@1"}
    assert evaluate(np.asfortranarray(X), Y) == evaluate(X, Y)
    assert evaluate(X[::-1], Y[::-1]) == evaluate(X[::-1].copy(), Y[::-1])
    frozen = X.copy()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate(frozen, Y) == evaluate(X, Y)
    assert evaluate(torch.from_numpy(X).requires_grad_(), torch.tensor(Y)) == evaluate(X, Y)
    assert expand_names(("MAP@R", "Recall@5"), (1,)) == ("map@r", "recall@5")
