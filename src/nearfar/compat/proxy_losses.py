"""The proxy losses of pytorch-metric-learning.

Parameters have the same names, shapes and initialization as in pytorch-metric-learning, so a state dict of one library
can be loaded into the other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nearfar.compat.arguments import refuse
from nearfar.compat.distances import BaseDistance, CosineSimilarity, LpDistance
from nearfar.compat.distances import checked as checked_distance
from nearfar.compat.indices import Indices, miner_weights
from nearfar.compat.metric_loss import OPTIONS, BaseMetricLossFunction, add_regularizer, checked_regularizer
from nearfar.compat.pair_based import reduce_matrix
from nearfar.compat.reducer_base import BaseReducer
from nearfar.compat.reducers import DivisorReducer, MeanReducer
from nearfar.losses.base import full_precision
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.cosines import cosines
from nearfar.losses.proxies.multi_proxy import pool_similarities
from nearfar.losses.proxies.proxy_loss import check_class_ids
from nearfar.losses.proxy_anchor import proxy_anchor_terms
from nearfar.losses.proxy_nca import proxy_nca
from nearfar.ops.geometry import unit
from nearfar.ops.precision import without_autocast
from nearfar.validation import check_embeddings, check_labels

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nearfar.compat.options import ProxyOptions


class ProxyBased(BaseMetricLossFunction):
    """Base class of losses with proxies.

    The proxies are a parameter with the name `parameter_name`. As in pytorch-metric-learning, samples are weighted by
    how often a miner selects them, and the parameter is converted to the dtype and device of the embeddings.
    Half-precision embeddings are first converted to float32. A subclass creates the parameter, and implements
    `similarity` and `terms`.
    """

    parameter_name = "proxies"
    proxies: nn.Parameter
    only_distance = True
    anchors_weigh = False  # whether a sample's weight counts only how often it is selected as an anchor

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def __init__(self, num_classes: int, embedding_size: int, **options: Unpack[ProxyOptions]) -> None:
        refuse(self, options, but=(*OPTIONS, "weight_init_func", "weight_regularizer", "weight_reg_weight"))
        super().__init__(**{name: value for name, value in options.items() if name in OPTIONS})  # type: ignore[arg-type]
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.weight_init_func = options.get("weight_init_func") or self.init_parameter
        self.weight_regularizer = checked_regularizer(self, "weight_regularizer", options.get("weight_regularizer"))
        self.weight_reg_weight = options.get("weight_reg_weight", 1)

    def init_parameter(self, parameter: Tensor) -> None:
        """Initialize the parameter in place, as pytorch-metric-learning does."""
        nn.init.normal_(parameter)

    def make_parameter(self, *shape: int) -> nn.Parameter:
        """Return an initialized parameter of this shape."""
        parameter = nn.Parameter(torch.empty(shape))
        self.weight_init_func(parameter)
        return parameter

    def weight_vectors(self) -> Tensor:
        """Return the proxies as vectors [N, d], for the regularizer."""
        parameter: Tensor = getattr(self, self.parameter_name)
        return parameter if self.parameter_name == "proxies" else parameter.t()

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Indices | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Any:
        """Compute the loss.

        Args:
            embeddings: The embeddings [B, d].
            labels: The class ids [B].
            indices_tuple: The output of a miner; samples are weighted by how often it selects them.
            ref_emb: Not supported: the proxies are the references.
            ref_labels: Not supported.
        """
        name = type(self).__name__
        if labels is None:
            raise ValueError(f"{name} requires labels, got None")
        if (ref_emb is not None and ref_emb is not embeddings) or (ref_labels is not None and ref_labels is not labels):
            raise ValueError(f"{name}: the proxies are the references: remove ref_emb and ref_labels")
        check_embeddings("embeddings", embeddings, dim=self.embedding_size)
        labels = labels.to(embeddings.device).long()
        check_labels("labels", labels, rows=len(embeddings), rows_name="embeddings")
        check_class_ids(labels, self.num_classes)
        with without_autocast(embeddings.device.type):
            emb = full_precision(embeddings)
            self.cast_parameter(emb)
            sims = self.class_similarities(emb, labels)
            value = self.regularize(self.value(sims, indices_tuple), emb)
            vectors = emb if self.weight_regularizer is None else self.weight_vectors()
            return add_regularizer(value, "weight_reg_loss", self.weight_regularizer, self.weight_reg_weight, vectors)

    def class_similarities(self, embeddings: Tensor, labels: Tensor) -> ClassSimilarities:
        """Compute the similarities between classes and samples."""
        rows = self.normalize_rows(embeddings)
        return ClassSimilarities(self.similarity(rows), labels, None, rows)

    def normalize_rows(self, embeddings: Tensor) -> Tensor:
        """Scale the embeddings to unit length. A subclass whose distance does not normalize returns them unchanged."""
        return unit(embeddings)

    def cast_parameter(self, like: Tensor) -> None:
        """Convert the parameter to the dtype and device of a tensor."""
        parameter = getattr(self, self.parameter_name)
        if parameter.dtype != like.dtype or parameter.device != like.device:
            parameter.data = parameter.data.to(like)

    def value(self, sims: ClassSimilarities, indices: Indices | None) -> Any:
        """Compute the loss: multiply the terms of the samples by the miner's weights, and apply the reducer."""
        terms, weights = self.terms(sims), miner_weights(indices, sims.embeddings, anchors=self.anchors_weigh)
        return self.reduce_terms(terms if weights is None else terms * weights, sims)

    def reduce_terms(self, terms: Tensor, sims: ClassSimilarities) -> Any:
        """Apply the reducer to the terms of the samples."""
        if type(self.reducer) is MeanReducer:
            return terms.mean()
        counts = torch.ones_like(terms, dtype=torch.bool)
        return reduce_matrix(self.reducer, terms, counts, "element", sims.embeddings, sims.labels)

    def similarity(self, rows: Tensor) -> Tensor:
        """Compute the similarities [C, B] between C classes and B embeddings, the result of `normalize_rows`."""
        return cosines(rows, self.proxies.to(rows.dtype))

    def terms(self, sims: ClassSimilarities) -> Tensor:
        """Compute the loss term of every sample. The result has shape [B]."""
        raise NotImplementedError

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the scores of all classes for each embedding. The result has shape [B, C].

        As in pytorch-metric-learning, the scores are similarities or, for some losses, distances.
        """
        emb = full_precision(embeddings)
        self.cast_parameter(emb)
        rows = nn.functional.normalize(emb) if self.distance.normalize_embeddings else emb
        cosines = rows @ nn.functional.normalize(self.weight_vectors()).T
        return self.logits(self.pool_centers(cosines), emb)

    def pool_centers(self, cosines: Tensor) -> Tensor:
        """Combine the cosines [B, C K] between B samples and K proxies per class into one cosine per class [B, C]."""
        return cosines

    def logits(self, cosines: Tensor, embeddings: Tensor) -> Tensor:
        """Convert the cosines [B, C] to scores."""
        return cosines

    def extra_repr(self) -> str:
        return f"{self.num_classes}, {self.embedding_size}, distance={self.distance!r}, reducer={self.reducer!r}"


class ProxyNCALoss(ProxyBased):
    """A loss with the formula of `nearfar.losses.ProxyNCALoss`, with the sample's own class in the denominator."""

    def get_default_distance(self) -> BaseDistance:
        return LpDistance(power=2)

    only_distance = False
    anchors_weigh = True

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        softmax_scale: float = 1,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, **options)
        checked_distance(
            self, self.distance, CosineSimilarity() if self.distance.is_inverted else LpDistance(power=2), only=True
        )
        self.softmax_scale = softmax_scale
        self.proxies = self.make_parameter(num_classes, embedding_size)

    def logits(self, cosines: Tensor, embeddings: Tensor) -> Tensor:
        return cosines if self.distance.is_inverted else 2 - 2 * cosines

    def terms(self, sims: ClassSimilarities) -> Tensor:
        # For unit vectors, D^2 = 2 - 2 cos. The constant 2 cancels in the softmax; the factor 2 goes into the scale.
        scale = self.softmax_scale * (1 if self.distance.is_inverted else 2)
        return proxy_nca(sims, scale, positive_in_denominator=True)


class ProxyAnchorLoss(ProxyBased):
    """A loss with the formula of `nearfar.losses.ProxyAnchorLoss`.

    If a miner gives a sample the weight w, its terms in the sums of exponentials are multiplied by e^{w - 1}.
    """

    def get_default_reducer(self) -> BaseReducer:
        return DivisorReducer()

    reducer_kinds = (DivisorReducer,)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.1,
        alpha: float = 32,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, **options)
        self.margin, self.alpha = margin, alpha
        self.proxies = self.make_parameter(num_classes, embedding_size)

    def init_parameter(self, parameter: Tensor) -> None:
        nn.init.kaiming_normal_(parameter, mode="fan_out")

    def value(self, sims: ClassSimilarities, indices: Indices | None) -> Any:
        weights = miner_weights(indices, sims.embeddings)
        if weights is not None:
            sims = ClassSimilarities(sims.matrix, sims.labels, (weights - 1).exp(), sims.embeddings)
        pos, neg = proxy_anchor_terms(sims, self.alpha, self.margin)
        return pos.sum() / torch.count_nonzero(sims.counts()) + neg.mean()


class SoftTripleLoss(ProxyBased):
    """A loss with the formula of `nearfar.losses.SoftTripleLoss`, without a regularizer.

    For the regularizer of the paper, pass weight_regularizer=SparseCentersRegularizer(...).
    """

    parameter_name = "fc"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        centers_per_class: int = 10,
        la: float = 20,
        gamma: float = 0.1,
        margin: float = 0.01,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, **options)
        self.centers_per_class, self.la, self.gamma, self.margin = centers_per_class, la, 1 / gamma, margin
        self.fc = self.make_parameter(embedding_size, num_classes * centers_per_class)

    def init_parameter(self, parameter: Tensor) -> None:
        nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))

    def similarity(self, rows: Tensor) -> Tensor:
        centers = self.fc.t().reshape(self.num_classes, self.centers_per_class, -1)
        return pool_similarities(cosines(rows, centers.to(rows.dtype)), "softmax", 1 / self.gamma)

    def pool_centers(self, cosines: Tensor) -> Tensor:
        centers = cosines.view(-1, self.num_classes, self.centers_per_class)
        return ((centers * self.gamma).softmax(2) * centers).sum(2)

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return sims.margin_terms(self.la, lambda own: (own - self.margin, None))
