"""Commands that decide from distances: calibrate, classify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nearfar.cli.options import DEVICE, SKIP_BROKEN, TRUNCATE

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("path", metavar="RUN|INDEX|MODEL", type=FOLDER)
@click.argument("source", metavar="[DATA]", required=False)
@click.option(
    "--split",
    type=click.Choice(["train", "val", "test", "all"]),
    help="Part of the data to measure on.  [default: test for the data of a run, else all]",
)
@click.option(
    "--method",
    default="logistic",
    show_default=True,
    type=click.Choice(["logistic", "isotonic"]),
    help="Type of the probability curves; isotonic needs thousands of samples.",
)
@click.option(
    "--fmr",
    "fmrs",
    multiple=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Find a threshold for this false match rate, in addition to 0.1, 0.01, 0.001 and 0.0001; repeatable.",
)
@TRUNCATE
@SKIP_BROKEN
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@DEVICE
def calibrate(path: Path, source: str | None, **options: Any) -> None:
    """Measure what distances mean: thresholds, probabilities, and when a class is unknown.

    The samples are those of a split of the run, or of DATA. Their classes should be classes that the model was not
    trained on, otherwise the results are too optimistic. A false match rate is the fraction of pairs of different
    classes that a threshold accepts as the same class.

    The result is stored as calibration.json in the directory of the model. `nearfar search` and `serve` then show the
    probability that a result has the class of the query. `nearfar classify`, the report and the model card also use the
    calibration.
    """
    from nearfar.search.calibration_command import calibration_command

    calibration_command(path, source, **options)


@click.command()
@click.argument("run", metavar="RUN|INDEX", type=FOLDER)
@click.argument("queries", metavar="QUERY...", nargs=-1, required=True)
@click.option("--index", "folder", type=click.Path(path_type=Path), help="Folder of an index.  [default: RUN/index]")
@click.option("--csv", type=click.Path(dir_okay=False, path_type=Path), help="Also write the results as a CSV file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@DEVICE
def classify(run: Path, **options: Any) -> None:
    """Find the class of each QUERY: an image file, a folder of images, a .npy file of vectors, or the id of a sample.

    If the model takes texts, a QUERY can also be a text in quotes. The nearest neighbors in the index vote, weighted by
    their calibrated probability. A query is "unknown" if the best class has too few votes. `nearfar index RUN DATA
    --add` extends the known classes without training. The model must be calibrated first, with `nearfar calibrate`.
    """
    from nearfar.search.classification_command import classification_command

    classification_command(run, **options)
