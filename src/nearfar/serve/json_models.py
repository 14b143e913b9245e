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
    """A query that is not an image file: the strokes of a drawing, or a vector or a text if the run's data is such."""

    model_config = ConfigDict(extra="forbid")
    strokes: Annotated[list[Stroke], Field(max_length=200)] | None = None
    vector: Annotated[list[Number], Field(max_length=65536)] | None = None
    text: Annotated[str, Field(max_length=MAX_CHARACTERS)] | None = None


class DecisionRequest(BaseModel):
    """A decision about a suspect. The decision "" undoes an earlier one. `label` is the new class for "relabel"."""

    model_config = ConfigDict(extra="forbid", strict=True)
    decision: Literal["keep", "relabel", "remove", ""]
    label: int | None = None


class Sample(BaseModel):
    """A sample. `label` is the number of its class, `split` is "added" if only the index of the run has the sample."""

    id: int
    name: str
    label: int
    split: str


class Neighbor(Sample):
    """A search result with its distance to the query, 1 - cosine."""

    distance: float


class SearchResponse(BaseModel):
    """The results of a search, nearest first.

    `query` is the query if it is a sample, otherwise null. `preview` is an image of a query that is an image or a
    drawing, as a data URI.
    """

    query: Sample | None
    preview: str | None = None
    neighbors: list[Neighbor]
    milliseconds: float


class ClassSummary(BaseModel):
    """A class. `count` is the number of its samples, `example` the id of one, `split` "train" if it was trained on."""

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
    """The scores of one embedding, from 0 to 1, by the name of the metric."""

    name: str
    values: dict[str, float]


class RunSummary(BaseModel):
    """The scores of a run, the titles of the metrics, all settings, and the other values of scores.json as `facts`."""

    scores: list[EmbeddingScores]
    titles: dict[str, str]
    settings: list[tuple[str, str]]
    facts: list[tuple[str, str]]


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
    """A sample whose label may be wrong, the evidence, and the decision about it.

    `suggested` is the label that the embeddings suggest; it can be the current label. `rival` is the most likely label
    other than the current one. `classmates` are other samples with the current label.
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
    """A part of the list of suspects.

    `total` is the number of suspects in the requested state. `suspected` is the number of samples whose label is
    probably wrong. `decided` maps each decision to the number of samples with that decision.
    """

    total: int
    suspected: int
    offset: int
    decided: dict[str, int]
    suspects: list[Suspect]
