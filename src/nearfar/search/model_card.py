"""The model card of an export: use, training, scores, intended use, limits and citation."""

from __future__ import annotations

from pathlib import Path

from nearfar import __version__
from nearfar.config import recipes
from nearfar.formatting import metric_title
from nearfar.search.encoder import Encoder

UNTESTED = "The data has no test split, so there are no scores."


def model_card(encoder: Encoder, usage: str) -> str:
    """Return a model card in Markdown. The scores are read from the run.

    Args:
        encoder: The model.
        usage: The section that explains how to load this export.
    """
    config, results = encoder.run.config, encoder.run.results()
    method = config.recipe or str(config.loss["name"])
    data = Path(config.data.source).name
    recipe = recipes.load(method) if method in recipes.names() else {}
    papers = list(dict.fromkeys(str(recipe[key]) for key in ("paper", "setup") if key in recipe))
    backbone = encoder.network.backbone
    inputs = "images" if backbone.has_image_input else "texts" if backbone.has_text_input else "vectors"
    scores = _scores(results["test"], results.get("untrained")) if "test" in results else [UNTESTED]
    trained = f"{results['steps']:,} steps with the loss `{config.loss['name']}`"
    lines = [
        f"# {method} on {data}",
        "",
        f"A network that embeds {inputs} into {encoder.dim} dimensions. It was trained to give samples of the same "
        "class a small cosine distance, and samples of different classes a large one. "
        f"Exported with nearfar {__version__}.",
        "",
        "## Use",
        "",
        usage.strip(),
        "",
        "## Training",
        "",
        f"- method: {method}, {trained}, seed {config.seed}",
        f"- data: {data} (fingerprint `{(config.data.fingerprint or 'unknown')[:12]}`), split {config.data.split}",
        f"- network: {config.model.backbone}, {'pretrained' if config.model.pretrained else 'from scratch'}",
        *([f"- injected label noise: {config.data.noise.rate:.0%}"] if config.data.noise.rate else []),
        "- settings: all are in the config.yaml of the run",
        "",
        "## Scores",
        "",
        *scores,
        *(["", f"Note: {results['warning']}."] if "warning" in results else []),
        "",
        "## Intended use",
        "",
        "Search for similar samples, group samples, and find labels that are probably wrong, on data like the training "
        "data. Use distances to rank samples. To decide whether two samples have the same class, choose a distance "
        "threshold on your own data.",
        "",
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


def _scores(test: dict[str, float], before: dict[str, float] | None) -> list[str]:
    header = "| percent | test |" + (" before training |" if before else "")
    lines = [header, "|---|---:|" + ("---:|" if before else "")]
    for name, value in test.items():
        old = f" {100 * before[name]:.1f} |" if before and name in before else " |" if before else ""
        lines.append(f"| {metric_title(name)} | {100 * value:.1f} |{old}")
    return lines
