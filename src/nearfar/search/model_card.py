"""A model card: what the model is, how it was trained, how good it is, what it is for and what not."""

from __future__ import annotations

from pathlib import Path

from nearfar import __version__
from nearfar.config import recipes
from nearfar.formatting import metric_title
from nearfar.search.encoder import Encoder

UNTESTED = "There was no test split: nothing was measured."


def model_card(encoder: Encoder, usage: str) -> str:
    """Markdown. `usage` is the part on how to load this export. Scores are those in the run, none are computed."""
    config, results = encoder.run.config, encoder.run.results()
    method = config.recipe or str(config.loss["name"])
    data = Path(config.data.source).name
    known = recipes.load(method) if method in recipes.names() else {}
    papers = list(dict.fromkeys(str(known[key]) for key in ("paper", "setup") if key in known))
    what = "pictures" if encoder.network.backbone.pictures else "vectors"
    scores = _scores(results["test"], results.get("untrained")) if "test" in results else [UNTESTED]
    trained = f"{results['steps']:,} steps with the loss `{config.loss['name']}`"
    lines = [
        f"# {method} on {data}",
        "",
        f"An embedding of {what} into {encoder.dim} dimensions, in which the same kind of thing is near by cosine and "
        f"a different kind far. Trained with nearfar {__version__}.",
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
        *([f"- wrong labels on purpose: {config.data.noise.rate:.0%}"] if config.data.noise.rate else []),
        "- every setting is in config.yaml of the run",
        "",
        "## Scores",
        "",
        *scores,
        *(["", f"Note: {results['warning']}."] if "warning" in results else []),
        "",
        "## Intended use",
        "",
        "Search for similar samples, grouping, and finding labels that are probably wrong, on data like that of the "
        'training. Distances are for ranking: a threshold for "the same" has to be set on data of your own.',
        "",
        "## Limits",
        "",
        "- Scores are of this data's test split; on pictures of another kind or from other cameras expect less.",
        "- It says what is near, not why, and it repeats what is uneven in its training data.",
        "- It was not made to identify people or for decisions about them.",
        "",
        "## Citation",
        "",
        *([f"- {paper}" for paper in papers] or [f"No paper is recorded for `{method}`."]),
        "",
    ]
    return "\n".join(lines)


def _scores(test: dict[str, float], before: dict[str, float] | None) -> list[str]:
    head = "| per cent | test |" + (" before training |" if before else "")
    lines = [head, "|---|---:|" + ("---:|" if before else "")]
    for name, value in test.items():
        old = f" {100 * before[name]:.1f} |" if before and name in before else " |" if before else ""
        lines.append(f"| {metric_title(name)} | {100 * value:.1f} |{old}")
    return lines
