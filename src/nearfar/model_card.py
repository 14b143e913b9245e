"""The model card of an exported or shared model: how to load it, training, scores, intended use, limits, citation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from nearfar import __version__
from nearfar.calibration import Calibration, load_calibration
from nearfar.calibration.description import THRESHOLD_HEADER, describe, threshold_rows, warning
from nearfar.config import recipes
from nearfar.data.layouts import PYTHON
from nearfar.formatting import markdown_table, metric_title
from nearfar.model import Model
from nearfar.models import Embedder

UNTESTED = "There are no test scores."


def front_matter(model: Model, *, license: str | None = None) -> str:
    """Return the YAML front matter of the card, which the Hugging Face Hub reads: library, tags, license and metrics.

    Args:
        model: The model: a training run, a saved model or a backbone.
        license: License of the model, such as "mit".
    """
    data, test = _data_name(model), model.results().get("test", {})
    tree: dict[str, Any] = {"library_name": "nearfar", "pipeline_tag": "feature-extraction"}
    tree["tags"] = ["metric-learning", "embeddings", "similarity-search", model.method]
    if license is not None:
        tree["license"] = license
    if test:
        metrics = [{"type": name, "name": metric_title(name), "value": round(value, 6)} for name, value in test.items()]
        result = {"task": {"type": "retrieval"}, "dataset": {"type": data, "name": data}, "metrics": metrics}
        tree |= {
            "datasets": [data],
            "metrics": list(test),
            "model-index": [{"name": model.method, "results": [result]}],
        }
    text: str = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    return f"---\n{text}---\n"


def model_card(model: Model, embedder: Embedder, usage: str) -> str:
    """Return a model card in Markdown. It includes the test scores if the model has any.

    Args:
        model: The model: a training run, a saved model or a backbone.
        embedder: The model's network.
        usage: The section that explains how to load the model.
    """
    config, results = model.config, model.results()
    method = model.method
    data = _data_name(model)
    recipe = recipes.load(method) if method in recipes.names() else {}
    papers = list(dict.fromkeys(str(recipe[key]) for key in ("paper", "setup") if key in recipe))
    backbone = embedder.backbone
    inputs = "images" if backbone.has_image_input else "texts" if backbone.has_text_input else "vectors"
    scores = _scores(results["test"], results.get("untrained")) if "test" in results else [UNTESTED]
    is_run = "steps" in results
    trained = (
        [
            f"- method: {method}, {results['steps']:,} steps with the loss `{config.loss_name}`, seed {config.seed}",
            f"- data: {data} (fingerprint `{(config.data.fingerprint or 'unknown')[:12]}`), split {config.data.split}",
            f"- network: {config.model.backbone}, {'pretrained' if config.model.pretrained else 'from scratch'}",
            *([f"- injected label noise: {config.data.noise.rate:.0%}"] if config.data.noise.rate else []),
            "- settings: all are in the config.yaml of the run",
        ]
        if is_run
        else ["This card was not made from a training run, so it does not describe the training."]
    )
    calibration = load_calibration(model, embedder)
    purpose = "It was trained to give samples of the same class a small cosine distance, and samples of different "
    lines = [
        f"# {method} on {data}" if is_run else f"# {method}",
        "",
        f"A network that embeds {inputs} into {embedder.dim} dimensions. "
        f"{f'{purpose}classes a large one. ' if is_run else ''}"
        f"Exported with nearfar {__version__}.",
        "",
        "## Use",
        "",
        usage.strip(),
        "",
        "## Training",
        "",
        *trained,
        "",
        "## Scores",
        "",
        *scores,
        *(["", f"Note: {results['warning']}."] if "warning" in results else []),
        *(_truncation_note(embedder.truncated) if embedder.truncated is not None and "test" in results else []),
        "",
        "## Intended use",
        "",
        "Search for similar samples, group samples, and find labels that are probably wrong, on data like the training "
        "data. Use distances to rank samples. "
        f"{_threshold_advice(calibration)}",
        "",
        *_decisions(calibration),
        "## Limits",
        "",
        f"- The scores are for the test split of this data. Expect lower scores on other kinds of {inputs}.",
        "- The model does not explain why two samples are near each other, and it reproduces the biases of its "
        "training data.",
        "- The model is not meant to identify people or to make decisions about them.",
        "",
        "## Citation",
        "",
        *([f"- {paper}" for paper in papers] or [f"No paper is recorded for `{method}`."]),
        "",
    ]
    return "\n".join(lines)


def _data_name(model: Model) -> str:
    return Path(model.config.data.source).name.removeprefix(PYTHON)


def _scores(test: dict[str, float], before: dict[str, float] | None) -> list[str]:
    header = "| percent | test |" + (" before training |" if before else "")
    lines = [header, "|---|---:|" + ("---:|" if before else "")]
    for name, value in test.items():
        old = f" {100 * before[name]:.1f} |" if before and name in before else " |" if before else ""
        lines.append(f"| {metric_title(name)} | {100 * value:.1f} |{old}")
    return lines


def _truncation_note(dim: int) -> list[str]:
    return [
        "",
        f"Note: the scores are for all dimensions of the trained network. This network returns only the first {dim}. "
        f"`nearfar eval RUN --truncate {dim}` measures their scores.",
    ]


def _threshold_advice(calibration: Calibration | None) -> str:
    if calibration is None:
        return (
            "To decide whether two samples have the same class, measure a distance threshold with `nearfar calibrate`."
        )
    return "To decide whether two samples have the same class, use a threshold from the section Decisions."


def _decisions(calibration: Calibration | None) -> list[str]:
    """Return the section about thresholds and probabilities, which is empty if the model is not calibrated."""
    if calibration is None:
        return []
    limit = warning(calibration)
    return [
        "## Decisions",
        "",
        "A pair of samples is accepted as the same class if its distance (1 - cosine) is at most the threshold. FMR is "
        "the fraction of pairs of different classes that are accepted, FNMR the fraction of pairs of the same class "
        "that are rejected. Intervals are from a bootstrap over classes. On other data, calibrate again.",
        "",
        markdown_table(THRESHOLD_HEADER, threshold_rows(calibration)),
        "",
        *[f"- {name}: {value}" for name, value in describe(calibration)],
        *([f"- note: {limit}"] if limit else []),
        "",
    ]
