"""Compute the responses of the API from the served samples and the user's decisions on their labels."""

from __future__ import annotations

import asyncio
import threading
from functools import cached_property, partial
from pathlib import Path

import anyio.to_thread
import numpy as np
from fastapi import HTTPException
from torch import Tensor

import nearfar
from nearfar.calibration import Calibration
from nearfar.calibration.description import THRESHOLD_HEADER, describe, threshold_rows, warning
from nearfar.calibration.votes import VOTERS
from nearfar.data.layouts.sketches import credit
from nearfar.formatting import metric_title, settings_lines
from nearfar.report.curves import draw_curves
from nearfar.report.decisions import draw_decisions
from nearfar.search.classification import classify_neighbors
from nearfar.search.exact import Vectors
from nearfar.serve.background_task import BackgroundTask
from nearfar.serve.batching import Batcher, batch_embed, batch_search
from nearfar.serve.collection import Collection
from nearfar.serve.decision_file import DecisionFile
from nearfar.serve.guard import MAX_BODY
from nearfar.serve.json_models import (
    CalibrationSummary,
    ClassDecision,
    ClassScore,
    ClassSummary,
    EmbeddingScores,
    Info,
    MapSummary,
    Neighbor,
    ProxyPoint,
    QueryKind,
    RunSummary,
    Sample,
)
from nearfar.serve.map_layout import LANDMARKS
from nearfar.serve.neighborhood_list import NeighborhoodList
from nearfar.serve.suspects import SuspectList
from nearfar.training.start_scores import RAW_TITLE, start_title
from nearfar.validation import Ints

MANY_SAMPLES = f"t-SNE of {LANDMARKS:,} random samples, extended to all samples by forces between nearest neighbors"

# matplotlib is imported when the first figure is drawn. If two threads import it at the same time, the import can fail
# and leave it unusable, so only one thread draws at a time.
_DRAWING = threading.Lock()
MAX_SHOWN = 2000  # the page shows at most this many characters of a text


class Service:
    """Methods that compute the responses of the API. The routes in `nearfar.serve.api` call them."""

    def __init__(self, collection: Collection, decisions: DecisionFile) -> None:
        self.collection, self.decisions = collection, decisions
        self.embedder = Batcher(batch_embed(collection.embedder))
        self.searcher = Batcher(batch_search(collection.index))
        ids = collection.ids[: collection.run_samples]
        self.suspects = BackgroundTask(lambda: SuspectList(collection.audit.wait(), ids, self.sample))
        self.neighborhoods = BackgroundTask(lambda: NeighborhoodList(collection.neighborhoods(), ids, self.sample))

    def sample(self, id: int) -> Sample:
        """Return a sample by its id. Respond with 404 if no such sample is served."""
        position = self.collection.position_of(id)
        if position is None:
            raise HTTPException(404, f"there is no sample {id}")
        return Sample(
            id=id,
            name=to_utf8((self.collection.text_of(id) or self.collection.name_of(id))[:MAX_SHOWN]),
            label=int(self.collection.labels[position]),
            split=self.collection.split_of(id),
        )

    def class_name(self, label: int | None) -> str | None:
        """Return the name of a class, or None if `label` is None. Respond with 404 if the class has no samples."""
        if label is None:
            return None
        classes = self.collection.classes
        if not 0 <= label < len(classes) or not len(self.collection.ids_of_class(label)):
            raise HTTPException(404, f"there is no class {label}")
        return classes[label]

    async def search(
        self, vector: Vectors, k: int, label: int | None, *, exclude: int | None = None
    ) -> tuple[list[Neighbor], ClassDecision | None]:
        """Return the k samples nearest to a vector, and the class that they vote for if the model is calibrated.

        Args:
            vector: The query [d].
            k: Number of neighbors.
            label: Search only samples of this class, without a vote. With None, all classes are searched.
            exclude: The id of a sample that is left out of the results, such as the query itself.
        """
        name, calibration = self.class_name(label), self.collection.calibration if label is None else None
        count = max(k, 0 if calibration is None else VOTERS) + (exclude is not None)
        if name is None:
            distances, ids = await asyncio.wrap_future(self.searcher.submit((vector, count)))
        else:
            search = partial(self.collection.index.search, label=name)
            result = await anyio.to_thread.run_sync(search, vector[None], count)
            distances, ids = result[0][0], result[1][0]
        is_kept = (ids >= 0) & (ids != (-1 if exclude is None else exclude))
        distances, ids = distances[is_kept], ids[is_kept]
        if calibration is None:
            same: list[float | None] = [None] * len(ids)
        else:
            same = calibration.probability(distances).tolist()
        nearest = list(zip(distances.tolist(), ids.tolist(), same, strict=True))[:k]
        neighbors = [
            Neighbor(**self.sample(id).model_dump(), distance=distance, same=probability)
            for distance, id, probability in nearest
        ]
        return neighbors, None if calibration is None else self._decide(calibration, distances, ids, exclude)

    def _decide(
        self, calibration: Calibration, distances: Vectors, ids: Ints, exclude: int | None
    ) -> ClassDecision | None:
        own = np.array([-1 if exclude is None else exclude])
        (result,) = classify_neighbors(self.collection.index, distances[None], ids[None], calibration, ids=own)
        return ClassDecision(
            label=None if result.label is None else self._labels[result.label],
            probability=result.probability,
            candidates=[ClassScore(label=self._labels[item.label], score=item.score) for item in result.candidates],
        )

    @cached_property
    def _labels(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.collection.classes)}

    def close(self) -> None:
        """Stop the threads that batch requests."""
        self.embedder.close()
        self.searcher.close()

    @cached_property
    def info(self) -> Info:
        """A description of the run and of the samples that are served."""
        collection, config = self.collection, self.collection.run.config
        accepts: dict[str, list[QueryKind]] = {"features": ["vector"], "text": ["text"]}
        images: list[QueryKind] = ["drawing", "image"] if collection.queries.accepts_drawings else ["image"]
        return Info(
            title=to_utf8(f"{collection.run.method} on {Path(config.data.source).name}"),
            samples=len(collection.ids),
            classes=len(np.unique(collection.labels)),
            display=collection.thumbnails.kind,
            accepts=accepts.get(collection.queries.kind, images),
            split=collection.split,
            dim=collection.index.dim,
            input_dim=collection.queries.input_dim,
            version=collection.version,
            max_bytes=MAX_BODY,
            credit=credit(config.data.source),
            not_shown=to_utf8(collection.added.problem),
            nearfar=nearfar.__version__,
        )

    @cached_property
    def classes(self) -> list[ClassSummary]:
        """The classes that have samples, ordered by label."""
        collection = self.collection
        labels, first, counts = np.unique(collection.labels, return_index=True, return_counts=True)
        train = set(collection.manifest.labels[collection.manifest.rows("train")].tolist())
        return [
            ClassSummary(
                label=label,
                name=to_utf8(collection.classes[label]),
                count=count,
                example=int(collection.ids[position]),
                split="train" if label in train else collection.split_of(int(collection.ids[position])),
            )
            for label, position, count in zip(labels.tolist(), first.tolist(), counts.tolist(), strict=True)
        ]

    def run_summary(self) -> RunSummary:
        """Return the scores and settings of the run, and the other values of scores.json."""
        run = self.collection.run
        results = run.results() if run.finished else {}
        names = {"raw": RAW_TITLE, "untrained": start_title(run.config), "test": run.method}
        scores = [EmbeddingScores(name=name, values=results[key]) for key, name in names.items() if key in results]
        facts = {key: value for key, value in results.items() if isinstance(value, str | int | float)}
        return RunSummary(
            scores=scores,
            titles={metric: metric_title(metric) for embedding in scores for metric in embedding.values},
            settings=[(key, to_utf8(value)) for key, value in settings_lines(run.config.to_dict())],
            facts=[(key.replace("_", " "), to_utf8(str(value))) for key, value in facts.items()],
            calibration=self._calibration_summary(),
        )

    def _calibration_summary(self) -> CalibrationSummary | None:
        calibration = self.collection.calibration
        if calibration is None:
            return None
        return CalibrationSummary(
            facts=[(key, to_utf8(value)) for key, value in describe(calibration)],
            header=list(THRESHOLD_HEADER),
            thresholds=[list(row) for row in threshold_rows(calibration)],
            warning=warning(calibration),
        )

    def curves(self) -> bytes:
        """Return an HTML document with the training curves."""
        run = self.collection.run
        with _DRAWING:
            figures, details = draw_curves({run.method: run.log()})
        return f"<!doctype html><title>curves</title>{figures}{details}".encode("utf-8", "replace")

    def calibration_figures(self) -> bytes:
        """Return an HTML document with the figures of the calibration. It is empty if the model is not calibrated."""
        calibration = self.collection.calibration
        with _DRAWING:
            figures = "" if calibration is None else draw_decisions(calibration)
        return f"<!doctype html><title>calibration</title>{figures}".encode("utf-8", "replace")

    def map_summary(self, layout: dict[str, Tensor]) -> MapSummary:
        """Return the number of points, the layout method and the proxies of the map."""
        count = len(layout["positions"])
        proxies = zip(layout["proxy_labels"].tolist(), layout["proxies"].tolist(), strict=True)
        return MapSummary(
            points=count,
            method="t-SNE" if count <= LANDMARKS else MANY_SAMPLES,
            proxies=[ProxyPoint(label=label, x=x, y=y) for label, (x, y) in proxies],
        )

    def map_points(self, layout: dict[str, Tensor]) -> bytes:
        """Return the points of the map as bytes: x and y [N] float32, id and label [N] int32, little-endian."""
        positions = layout["positions"].numpy().astype("<f4")
        ids, labels = self.collection.ids.astype("<i4"), self.collection.labels.astype("<i4")
        columns = (positions[:, 0], positions[:, 1], ids, labels)
        return b"".join(np.ascontiguousarray(column).tobytes() for column in columns)


def to_utf8(text: str) -> str:
    """Return a text with "?" in place of each character that UTF-8 cannot encode.

    Python represents undecodable bytes of a file name by such characters, and JSON cannot contain them.
    """
    return text.encode("utf-8", "replace").decode()
