"""Commands that compare methods: bench run, table, figure, plot, audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

RESULTS = click.argument("file", metavar="RESULTS", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group()
def bench() -> None:
    """Compare methods under equal conditions: run a suite, then create its tables and figures."""


@bench.command("run")
@click.argument("name", metavar="SUITE")
@click.option("--data", "sources", multiple=True, metavar="NAME=PATH", help="Path of a dataset; repeatable.")
@click.option("--only", multiple=True, metavar="NAME", help="Use only this dataset or group of datasets; repeatable.")
@click.option("--method", "methods", multiple=True, metavar="NAME", help="Run only this method now; repeatable.")
@click.option("--seed", "seeds", multiple=True, type=int, help="Run only this seed now; repeatable.")
@click.option("--peer", is_flag=True, help="Also run the same losses from pytorch-metric-learning, where it has them.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a setting of the suite; repeatable."
)
@click.option(
    "--tune-by",
    "metric",
    metavar="METRIC",
    help="Choose tuned settings by this metric.  [default: the metric of the suite]",
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Results file.  [default: runs/SUITE.jsonl]"
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(min=1), help="Number of runs in parallel.")
@click.option(
    "--threads", default=1, show_default=True, type=click.IntRange(min=1), help="Number of torch threads per run."
)
def bench_run(
    name: str,
    sources: tuple[str, ...],
    only: tuple[str, ...],
    methods: tuple[str, ...],
    seeds: tuple[int, ...],
    peer: bool,
    settings: tuple[str, ...],
    metric: str | None,
    out: Path | None,
    workers: int,
    threads: int,
) -> None:
    """Run all cells of SUITE that have no results yet. SUITE is the name of a built-in suite or a YAML file.

    A cell is a combination of dataset, method, seed and value of the swept setting. The result of each cell is saved
    as soon as it is finished, so you can interrupt the command at any time and run it again to continue.
    """
    from dataclasses import replace

    from nearfar.formatting import counted
    from nearfar.suites.run import run_suite
    from nearfar.suites.suite_file import open_suite, suite_from_dict

    paths = {}
    for text in sources:
        key, sign, path = text.partition("=")
        if not sign or not path:
            raise click.BadParameter(f"must be NAME=PATH, got {text!r}", param_hint="--data")
        paths[key] = path
    suite = open_suite(name)
    if settings:
        suite = suite_from_dict(replace(suite, override=(*suite.override, *settings)).to_dict(), name)
    if metric is not None:
        suite = replace(suite, tune=replace(suite.tune, metric=metric))
    out = out or Path("runs") / f"{suite.name}.jsonl"
    failed = run_suite(
        suite,
        out,
        sources=paths,
        only=suite.dataset_names(only),
        methods=methods,
        seeds=seeds,
        workers=workers,
        threads=threads,
        peer=peer,
        say=click.echo,
    )
    click.echo(f"To show the table: nearfar bench table {out}")
    if failed:
        raise click.ClickException(
            f"{counted(failed, 'cell')} failed (errors are in {out}): run the command again to retry"
        )


@bench.command("audit")
@click.argument("source", metavar="DATA")
@click.option(
    "--split",
    default="train",
    show_default=True,
    type=click.Choice(["train", "val", "test"]),
    help="Part of the data to use.",
)
@click.option(
    "--rate",
    default=0.2,
    show_default=True,
    type=click.FloatRange(0, 1, True, True),
    help="Fraction of the labels to make wrong.",
)
@click.option(
    "--seeds",
    default=5,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of repetitions, each with different noise.",
)
@click.option("--classes", type=click.IntRange(min=2), help="Use only the first N classes.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1), help="Number of torch threads.")
def bench_audit(source: str, split: str, rate: float, seeds: int, classes: int | None, threads: int) -> None:
    """Make some labels of DATA (vectors or drawings) wrong, and measure how well the audit and baselines find them."""
    import torch

    from nearfar.audit.noise_benchmark import make_noise_table

    torch.set_num_threads(threads)
    click.echo(make_noise_table(source, split=split, rate=rate, seeds=seeds, classes=classes))


@bench.command("table")
@RESULTS
@click.option(
    "--format",
    "style",
    type=click.Choice(["markdown", "csv", "html", "latex"]),
    help="Format of the table.  [default: from the suffix of --out, else markdown]",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Output file.  [default: print]")
def bench_table(file: Path, style: str | None, out: Path | None) -> None:
    """Show means over seeds and paired differences from the baseline, both with 95% confidence intervals."""
    from nearfar.suites.results import read_results
    from nearfar.suites.table import table

    by_suffix = {".csv": "csv", ".html": "html", ".htm": "html", ".tex": "latex"}
    suffix = "" if out is None else out.suffix.lower()
    _write(table(read_results(file), style or by_suffix.get(suffix, "markdown")), out, read=file)


@bench.command("figure")
@RESULTS
@click.option("--x", required=True, metavar="KEY", help="The setting that the suite sweeps, e.g. data.noise.rate.")
@click.option("--metric", default="recall@1", show_default=True, help="Metric on the y-axis.")
@click.option("--method", "methods", multiple=True, metavar="NAME", help="Draw only this method; repeatable.")
@click.option("--gain", is_flag=True, help="Draw the difference from the baseline instead of the metric itself.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="An .svg file.  [default: print]")
def bench_figure(file: Path, x: str, metric: str, methods: tuple[str, ...], gain: bool, out: Path | None) -> None:
    """Plot a metric against the values of the setting that a suite sweeps, with a line for each method."""
    from nearfar.suites.figure import draw_figure
    from nearfar.suites.results import read_results

    if out is not None and out.suffix.lower() != ".svg":
        raise click.BadParameter(f"must be an .svg file, got {out}", param_hint="--out")
    _write(draw_figure(read_results(file), x=x, metric=metric, methods=methods, gain=gain), out, read=file)


@bench.command("plot")
@click.argument("kind", type=click.Choice(["map", "similarity", "compactness", "overfitting", "decay", "settings"]))
@click.argument("sources", metavar="RUN...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="An .svg or .png file.")
@click.option(
    "--split",
    type=click.Choice(["train", "val", "test"]),
    help="For map and similarity: the split.  [default: train]",
)
@click.option(
    "--classes",
    type=click.IntRange(min=1),
    help="For map and similarity: number of random classes to show.  [default: 20]",
)
@click.option("--seed", type=int, help="For map and similarity: seed that selects the classes.  [default: 0]")
@click.option("--x", metavar="KEY", help="For settings: the setting on the x-axis, which the suite sweeps.")
@click.option("--y", metavar="KEY", help="For settings: the setting on the y-axis, in which the methods differ.")
@click.option("--metric", help="For settings and overfitting: the metric.  [default: recall@1]")
def bench_plot(kind: str, sources: tuple[Path, ...], out: Path, **options: Any) -> None:
    """Plot one or more runs, or the results of a suite.

    \b
    map          the embedding space in two dimensions, one panel per run
    similarity   cosines of samples with proxies and with each other, one column per run
    compactness  mean cosines of proxies and of training samples over the epochs of runs
    overfitting  a metric over the epochs of runs
    decay        the penalties of one Proxy-ISA run against the number of samples seen
    settings     a metric over two settings; RUN is the results file of a suite
    """
    from nearfar.suites.plots import write_plot

    write_plot(kind, sources, out, **options)


def _write(text: str, out: Path | None, *, read: Path) -> None:
    if out is None:
        click.echo(text, nl=False)
        return
    from nearfar.files import atomic, check_not_read

    check_not_read(out, [read], remedy="choose another --out")
    with atomic(out) as draft:
        draft.write_text(text, encoding="utf-8")
