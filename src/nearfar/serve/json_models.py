"""The JSON objects of the API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Number = Annotated[float, Field(allow_inf_nan=False)]
Point = Annotated[list[Number], Field(min_length=2, max_length=2)]
Stroke = Annotated[list[Point], Field(max_length=2000)]
Display = Literal["drawings", "images", "text"]
QueryKind = Literal["image", "drawing", "vector"]


class SearchRequest(BaseModel):
    """A query that is not an image file: the strokes of a pen, or a vector if the data are vectors."""

    model_config = ConfigDict(extra="forbid")
    strokes: Annotated[list[Stroke], Field(max_length=200)] | None = None
    vector: Annotated[list[Number], Field(max_length=65536)] | None = None


class DecisionRequest(BaseModel):
    """A decision about a suspect; `decision` "" undoes an earlier one, and `label` is the new class for "relabel"."""

    model_config = ConfigDict(extra="forbid", strict=True)
    decision: Literal["keep", "relabel", "remove", ""]
    label: int | None = None


class Sample(BaseModel):
    """A sample of the data."""

    id: int
    name: str
    label: int
    split: str


class Neighbor(Sample):
    """A search result with its cosine distance, 1 - cosine."""

    distance: float


class SearchResponse(BaseModel):
    """The results of a search, nearest first.

    `query` is the sample that was searched from, if the query is a sample. `preview` shows the query as the network
    sees it, as a data URI.
    """

    query: Sample | None
    preview: str | None = None
    neighbors: list[Neighbor]
    milliseconds: float


class ClassSummary(BaseModel):
    """A class: the number of its samples, the id of an example, and "train" if it was used for training."""

    label: int
    name: str
    count: int
    example: int
    split: str


class SamplePage(BaseModel):
    """A part of a list of samples."""

    total: int
    offset: int
    samples: list[Sample]


class Info(BaseModel):
    """What is served. `accepts` lists the kinds of queries; `input_dim` is the length of a query vector."""

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
    nearfar: str


class EmbeddingScores(BaseModel):
    """The scores of one embedding by metric, from 0 to 1."""

    name: str
    values: dict[str, float]


class RunSummary(BaseModel):
    """The scores of a run, titles of the metrics, all settings, and the other entries of scores.json."""

    scores: list[EmbeddingScores]
    titles: dict[str, str]
    settings: list[tuple[str, str]]
    facts: list[tuple[str, str]]


class Computing(BaseModel):
    """The result is not ready: ask again in a second."""

    detail: Literal["computing"] = "computing"


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
    """A sample whose label may be wrong, the evidence, and the decision about it."""

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

    `suspected` is the number of samples whose neighbors suggest a different label, `decided` the number of samples by
    decision.
    """

    total: int
    suspected: int
    offset: int
    decided: dict[str, int]
    suspects: list[Suspect]
