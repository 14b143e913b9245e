"""The JSON objects of the API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from nearfar.data.layouts.text_checks import MAX_CHARACTERS

Number = Annotated[float, Field(allow_inf_nan=False)]
Point = Annotated[list[Number], Field(min_length=2, max_length=2)]
Stroke = Annotated[list[Point], Field(max_length=2000)]
Display = Literal["drawings", "images", "text"]
QueryKind = Literal["image", "drawing", "vector", "text"]


class SearchRequest(BaseModel):
    """A query that is not an image file: the strokes of a drawing, a vector or a text, depending on the run's data."""

    model_config = ConfigDict(extra="forbid")
    strokes: Annotated[list[Stroke], Field(max_length=200)] | None = None
    vector: Annotated[list[Number], Field(max_length=65536)] | None = None
    text: Annotated[str, Field(max_length=MAX_CHARACTERS)] | None = None


class DecisionRequest(BaseModel):
    """What to do with a sample. The decision "" undoes an earlier decision. `label` is the new class for "relabel"."""

    model_config = ConfigDict(extra="forbid", strict=True)
    decision: Literal["keep", "relabel", "remove", ""]
    label: int | None = None


class Sample(BaseModel):
    """A sample. `label` is the number of its class. `split` is "added" if the sample is only in the run's index."""

    id: int
    name: str
    label: int
    split: str


class Neighbor(Sample):
    """A search result with its distance to the query, 1 - cosine.

    `same` is the probability that it has the class of the query, or null if the model is not calibrated, or if the
    search is limited to a class.
    """

    distance: float
    same: float | None = None


class ClassScore(BaseModel):
    """A class that a query may have.

    `score` is between 0 and 1. It is 1 if as many of the ten nearest neighbors as possible have the class, each with
    probability 1 (see `nearfar.calibration.votes`).
    """

    label: int
    score: float


class ClassDecision(BaseModel):
    """The class of a query by the calibrated votes of its ten nearest neighbors.

    `label` is null if the query probably has none of the classes. `probability` is the probability that the first
    candidate is right, assuming that the query has one of the classes. `candidates` are the best classes, best first.
    """

    label: int | None
    probability: float
    candidates: list[ClassScore]


class SearchResponse(BaseModel):
    """The results of a search, nearest first.

    `query` is the query if it is a sample, otherwise null. `preview` is an image of a query that is an image or a
    drawing, as a data URI. `decision` is the class that the nearest neighbors vote for. It is null if the model is not
    calibrated, or if the search is limited to a class.
    """

    query: Sample | None
    preview: str | None = None
    neighbors: list[Neighbor]
    decision: ClassDecision | None = None
    milliseconds: float


class ClassSummary(BaseModel):
    """A class with `count` samples. `example` is the id of one of them.

    `split` is "train" if the class was trained on, otherwise the split of the example.
    """

    label: int
    name: str
    count: int
    example: int
    split: str


class SamplePage(BaseModel):
    """A part of a list of `total` samples, starting at position `offset`."""

    total: int
    offset: int
    samples: list[Sample]


class Info(BaseModel):
    """A description of the run and of the samples that are served.

    `accepts` lists the kinds of queries. `input_dim` is the length of a query vector, or 0 if queries are not vectors.
    `not_shown` says which samples or images of the run's index are not served, or is empty.
    """

    title: str
    samples: int
    classes: int
    display: Display
    accepts: list[QueryKind]
    split: str
    dim: int
    input_dim: int
    version: str
    max_bytes: int
    credit: str
    not_shown: str
    nearfar: str


class EmbeddingScores(BaseModel):
    """The scores of one kind of embedding, such as that of the untrained or of the trained network.

    `values` maps the name of each metric to a score from 0 to 1.
    """

    name: str
    values: dict[str, float]


class CalibrationSummary(BaseModel):
    """The figures of a calibration as `facts`, and a table of thresholds with one row for each false match rate.

    `warning` says why the figures are too optimistic, or is empty.
    """

    facts: list[tuple[str, str]]
    header: list[str]
    thresholds: list[list[str]]
    warning: str


class RunSummary(BaseModel):
    """The scores of a run, the titles of the metrics, all settings, and the other values of scores.json as `facts`.

    `calibration` is null if the model is not calibrated.
    """

    scores: list[EmbeddingScores]
    titles: dict[str, str]
    settings: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    calibration: CalibrationSummary | None


class Computing(BaseModel):
    """The result is not ready. Send the request again after a second."""

    detail: Literal["computing"] = "computing"


class Problem(BaseModel):
    """Why a request was refused, as one sentence."""

    detail: str


class ProxyPoint(BaseModel):
    """A proxy on the map."""

    label: int
    x: float
    y: float


class MapSummary(BaseModel):
    """The map: the number of points in `/api/map/points`, the layout method, and the proxies."""

    points: int
    method: str
    proxies: list[ProxyPoint]


class Suspect(BaseModel):
    """A sample whose label may be wrong, and the evidence.

    `suggested` is the label that the embeddings suggest; it can be the current label. `rival` is the most likely label
    other than the current one. `classmates` are other samples with the current label. `decision` is the user's
    decision: "keep", "relabel", "remove", or "" if there is none.
    """

    sample: Sample
    rank: int
    score: float
    suggested: int
    rival: int
    reason: str
    neighbors: list[Sample]
    classmates: list[Sample]
    decision: str
    new_label: int | None


class SuspectPage(BaseModel):
    """A part of the list of suspicious samples, starting at position `offset`.

    The list contains all samples, or only those with or without a decision, as requested; `total` is its length.
    `suspected` is the number of samples whose label is probably wrong. `decided` maps each decision ("keep", "relabel",
    "remove") to the number of samples with that decision.
    """

    total: int
    suspected: int
    offset: int
    decided: dict[str, int]
    suspects: list[Suspect]


class NearSample(Sample):
    """A near duplicate or an outlier.

    `decision` is the user's decision: "keep", "relabel", "remove", or "" if there is none.
    """

    decision: str


class DuplicateSummary(BaseModel):
    """A group of `count` near duplicates. `samples` lists at most 24 of them.

    `distance` is the smallest distance between two samples of the group. `across_splits` is true if the samples are in
    different splits, and `several_labels` is true if they have different labels.
    """

    samples: list[NearSample]
    count: int
    distance: float
    across_splits: bool
    several_labels: bool


class DuplicatePage(BaseModel):
    """A part of the list of groups of near duplicates, starting at position `offset`.

    Groups across splits come first, then groups with several labels. `total` is the number of all groups.
    `across_splits` is the number of groups with samples of different splits.
    """

    total: int
    across_splits: int
    offset: int
    groups: list[DuplicateSummary]


class OutlierPage(BaseModel):
    """A part of the list of `total` samples that are far from all others, farthest first."""

    total: int
    offset: int
    samples: list[NearSample]
