"""The JSON that the API gives and takes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Number = Annotated[float, Field(allow_inf_nan=False)]
Point = Annotated[list[Number], Field(min_length=2, max_length=2)]
Stroke = Annotated[list[Point], Field(max_length=2000)]


class Asked(BaseModel):
    """A query that is no picture file: strokes of a pen, or a vector for data of vectors."""

    model_config = ConfigDict(extra="forbid")
    strokes: Annotated[list[Stroke], Field(max_length=200)] | None = None
    vector: Annotated[list[Number], Field(max_length=65536)] | None = None


class Choice(BaseModel):
    """A decision on a suspect; relabel names the new class by its number, "" takes a decision back."""

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
    """A sample that was found, and its cosine distance, 1 - cosine."""

    distance: float


class Found(BaseModel):
    """What a search found, the nearest first. `query` is the sample that was searched from, if it is one.

    `seen` is the query as the network sees it, a picture as data URI.
    """

    query: Sample | None
    seen: str | None = None
    neighbors: list[Neighbor]
    milliseconds: float


class Class(BaseModel):
    """A class with samples here: how many, an example, and whether training saw it."""

    label: int
    name: str
    count: int
    example: int
    split: str


class Samples(BaseModel):
    """A part of a list."""

    total: int
    offset: int
    samples: list[Sample]


class Info(BaseModel):
    """What is served. `takes` says what a query may be: picture, drawing or vector."""

    title: str
    samples: int
    classes: int
    look: Literal["drawings", "pictures", "words"]
    takes: list[Literal["picture", "drawing", "vector"]]
    split: str
    dim: int
    width: int
    version: str
    most_bytes: int
    credit: str
    nearfar: str


class Score(BaseModel):
    """Scores of one embedding, by metric, 0 to 1."""

    name: str
    values: dict[str, float]


class About(BaseModel):
    """The run: its scores, every setting, and what scores.json says beside the scores."""

    scores: list[Score]
    titles: dict[str, str]
    settings: list[tuple[str, str]]
    facts: list[tuple[str, str]]


class Waiting(BaseModel):
    """Not yet: ask again in a second."""

    detail: Literal["computing"] = "computing"


class Star(BaseModel):
    """A proxy on the map."""

    label: int
    x: float
    y: float


class Plane(BaseModel):
    """The map: how many points `/api/map/points` has, how they were laid out, and the proxies."""

    points: int
    method: str
    stars: list[Star]


class Suspect(BaseModel):
    """A sample whose label may be wrong, the evidence, and what was decided."""

    sample: Sample
    rank: int
    score: float
    suggested: int
    rival: int
    reason: str
    neighbors: list[Sample]
    mates: list[Sample]
    decision: str
    new_label: int | None


class Suspects(BaseModel):
    """A part of the audit's order; `doubted` have neighbors and class for another label, `decided` by decision."""

    total: int
    doubted: int
    offset: int
    decided: dict[str, int]
    suspects: list[Suspect]
