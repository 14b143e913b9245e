"""The command `nearfar`. torch is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

import nearfar
from nearfar.errors import NearfarError

INTERRUPTED = 130  # as shells tell it: 128 + SIGINT


class Plain(click.Group):
    """A group whose commands tell what is wrong in one line: errors about data and files are for people."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NearfarError as error:
            raise click.ClickException(str(error)) from None
        except KeyboardInterrupt:
            click.echo("Interrupted. A run goes on with `nearfar train --resume --out RUN`.", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=Plain, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(nearfar.__version__, prog_name="nearfar")
def main() -> None:
    """Deep metric learning: the same kind of thing near, a different kind far, and search from it."""


@main.command()
@click.argument("source", metavar="DATA", required=False)
@click.option("--recipe", help="A method with its setting: nearfar recipes lists them.  [default: proxy-anchor]")
@click.option("--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="A YAML file of settings.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="One setting, e.g. optimizer.lr=1e-4.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="The run.  [default: runs/DATA-RECIPE]")
@click.option("--resume", is_flag=True, help="Go on with a run that was stopped, to the same weights.")
@click.option("--allow-partial", is_flag=True, help="Go on with an official data set that lacks files.")
@click.option("--dry-run", is_flag=True, help="Print the whole configuration and stop.")
@click.option("--processes", default=1, show_default=True, type=click.IntRange(min=1), help="That share each batch.")
def train(processes: int, **options: Any) -> None:
    """Train an embedding on DATA: a folder of class folders, a tar of one, a CSV, an .npz, a benchmark, `sketches`.

    The configuration is the defaults for the kind of data, then the recipe, then --config, then --set. It is saved in
    the run whole, and `nearfar train --config RUN/config.yaml --out OTHER` makes the same run again.
    """
    from nearfar.training.command import launch, train_command

    if processes > 1 and not options["dry_run"]:
        sys.exit(launch(processes, **options))
    train_command(**options)


@main.command("eval")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("source", metavar="[DATA]", required=False)
@click.option("--split", default="test", show_default=True, type=click.Choice(["train", "val", "test", "all"]))
@click.option("--metrics", help="Names with commas, e.g. recall@1,map@r,ndcg@10,nmi.  [default: the run's]")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def evaluate(run: Path, source: str | None, split: str, metrics: str | None, as_json: bool) -> None:
    """Score a trained RUN on its own data, or on other DATA, read the same way."""
    from nearfar.training import Run

    names = None if metrics is None else tuple(name.strip() for name in metrics.split(","))
    try:
        scores = Run(run).evaluate(source, split=split, metrics=names)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    click.echo(scores.to_json() if as_json else scores.table())


@main.command()
@click.argument("source", metavar="DATA")
@click.option("--minutes", default=10.0, show_default=True, type=float, help="How long the races may take.")
@click.option("--recipes", help="Who races, between commas: supcon, proxy-anchor loss.alpha=16.  [default: eight]")
@click.option("--whole", is_flag=True, help="Pictures: train the whole network (hours without a GPU), not a layer.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Races.  [default: runs/advise-DATA]")
def advise(**options: Any) -> None:
    """Find the recipe for DATA: short races between recipes, judged on training classes that are held out.

    Ends in a recommendation, how sure it is, and the command to train. The test split is never looked at. Every race is
    kept at once: stop it whenever you like, and start it again to go on.
    """
    from nearfar.advise.command import advise_command

    advise_command(**options)


@main.command()
@click.argument("target", metavar="RUN|DATA")
@click.option("--model", type=click.Path(path_type=Path), help="A run whose network to look with, for DATA.")
@click.option("--split", default="all", show_default=True, type=click.Choice(["train", "val", "test", "all"]))
@click.option("--size", type=click.IntRange(min=32), help="Side of the photos for EfficientNet-Lite0.  [default: 224]")
@click.option("--shown", default=100, show_default=True, type=click.IntRange(min=1), help="Samples on the page.")
@click.option(
    "--noise",
    default=0.0,
    type=click.FloatRange(0, 0.9),
    help="First make this share wrong, and tell how many are found.",
)
@click.option("--apply", "decisions", type=click.Path(exists=True, path_type=Path), help="Decisions from the page.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder, or with --apply the corrected manifest.")
def audit(**options: Any) -> None:
    """Find the samples whose label is probably wrong: a table and a page with the evidence.

    On DATA nothing is trained: vectors are taken as they are, photos go through EfficientNet-Lite0. On a RUN its own
    network looks. The page lets you keep, relabel or remove, and gives a decisions.csv; `--apply decisions.csv --out
    corrected.csv` writes a manifest that keeps the old labels beside the new.
    """
    from nearfar.audit.command import audit_command

    audit_command(**options)


@main.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("source", metavar="DATA")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="The index.  [default: RUN/index]")
@click.option(
    "--kind",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "exact", "hnsw", "ivf-pq"]),
    help="auto: exact up to 200,000 vectors.",
)
@click.option("--add", is_flag=True, help="Extend the index that is there.")
def index(run: Path, **options: Any) -> None:
    """Embed all samples of DATA with the model of RUN and keep them as a search index."""
    from nearfar.search.command import index_command

    index_command(run, **options)


@main.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("queries", metavar="QUERY...", nargs=-1, required=True)
@click.option("-k", default=10, show_default=True, type=click.IntRange(min=1), help="Neighbors.")
@click.option("--label", "labels", multiple=True, metavar="NAME", help="Only samples of this class (may be repeated).")
@click.option("--index", "folder", type=click.Path(path_type=Path), help="An index.  [default: RUN/index]")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Also a page with the pictures.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def search(run: Path, **options: Any) -> None:
    """Find the nearest samples of each QUERY: a picture file, a .npy of vectors, or the id of a sample.

    Searches RUN/index, or where there is none the run's own data.
    """
    from nearfar.search.command import search_command

    search_command(run, **options)


@main.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--format",
    "style",
    default="onnx",
    show_default=True,
    type=click.Choice(["onnx", "safetensors", "vectors"]),
    help="The model, or the vectors of its index for a vector database.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder.  [default: RUN/export/FORMAT]")
def export(run: Path, **options: Any) -> None:
    """Write the model of RUN as ONNX or safetensors with a model card, or its vectors for a database."""
    from nearfar.search.command import export_command

    export_command(run, **options)


@main.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Another than this machine needs a token.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535))
@click.option("--token", help="What every request must bring.  [default: none on this machine, else a new one]")
@click.option("--split", default="all", show_default=True, type=click.Choice(["train", "val", "test", "all"]))
def serve(**options: Any) -> None:
    """Open a RUN in the browser: search by picture or drawing, classes, map, scores, label audit; and its JSON API.

    Vectors, map and audit are made once and kept in RUN/web, decisions on labels in RUN/decisions.csv.
    """
    from nearfar.serve.command import serve_command

    serve_command(**options)


@main.command()
@click.option("--steps", type=click.IntRange(min=1), help="Batches for each recipe.")
@click.option(
    "--pretrained", "photos", metavar="FOLDER", help="The same on a folder of your photos, EfficientNet-Lite0."
)
@click.option("--out", default="runs/demo", show_default=True, type=click.Path(file_okay=False, path_type=Path))
def demo(steps: int | None, photos: str | None, out: Path) -> None:
    """Train on the embedded drawings, and recognize kinds of things never seen in training."""
    from nearfar.demo import run

    run(steps=steps, source=photos or "sketches", out=out)


@main.command()
@click.argument("name", required=False)
def losses(name: str | None) -> None:
    """List the losses, or show one with its formula and options."""
    import inspect

    from nearfar.losses import loss_class, names

    if name is None:
        for each in names():
            click.echo(f"{each:20s} {(inspect.getdoc(loss_class(each)) or '').splitlines()[0]}")
        return
    try:
        shown = loss_class(name)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name}{inspect.signature(shown, eval_str=True)}\n\n{inspect.getdoc(shown)}")


@main.command()
@click.argument("name", required=False)
def recipes(name: str | None) -> None:
    """List the recipes, or show one with the source of each of its numbers."""
    from nearfar.config import recipes as known

    if name is None:
        for each in known.names():
            click.echo(f"{each:20s} {known.load(each)['paper']}")
        return
    try:
        click.echo(known.text(name), nl=False)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


@main.command()
@click.argument("source", metavar="DATA")
@click.option("--scan", "scanned", is_flag=True, help="Also read every picture: broken and doubled files.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(min=1), help="Threads that read pictures.")
@click.option("--allow-partial", is_flag=True, help="Go on with an official data set that lacks files.")
@click.option("--root", type=click.Path(path_type=Path), help="Folder of the pictures that a table names.")
def data(source: str, scanned: bool, workers: int, allow_partial: bool, root: Path | None) -> None:
    """Show what a data set holds: classes, counts, splits; with --scan also broken and doubled files.

    DATA is a folder of class folders, a tar of one, a CSV, an .npz of vectors, a benchmark in its official layout, or
    `sketches`, the embedded drawings.
    """
    from tqdm import tqdm

    from nearfar.data import open_data, scan_images

    manifest = open_data(source, allow_partial=allow_partial, root=root)
    click.echo(manifest.summary())
    if scanned and manifest.kind == "files":
        with tqdm(total=len(manifest), unit="file", leave=False, disable=None) as bar:
            click.echo(scan_images(manifest, workers=workers, progress=lambda *_: bar.update()))


@main.group()
def bench() -> None:
    """Compare methods under the same conditions: run a suite, then its tables and figures."""


@bench.command("run")
@click.argument("name", metavar="SUITE")
@click.option("--data", "sources", multiple=True, metavar="NAME=PATH", help="Where data of the suite is.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this data of the suite, or this track of data.")
@click.option("--method", "methods", multiple=True, metavar="NAME", help="Run only this method now.")
@click.option("--seed", "seeds", multiple=True, type=int, help="Run only this seed now.")
@click.option(
    "--peer", is_flag=True, help="Also pytorch-metric-learning's loss in each method's place, where it has it."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting above all of the suite's.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Results.  [default: runs/SUITE.jsonl]")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(min=1), help="Processes.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1), help="Of torch, in each process.")
def bench_run(
    name: str,
    sources: tuple[str, ...],
    only: tuple[str, ...],
    methods: tuple[str, ...],
    seeds: tuple[int, ...],
    peer: bool,
    settings: tuple[str, ...],
    out: Path | None,
    workers: int,
    threads: int,
) -> None:
    """Run the cells of SUITE, the name of one that comes along or a YAML file, which have no results yet.

    Every finished cell is a line of the results file at once: stop it whenever you like, and start it again to go on.
    """
    from dataclasses import replace

    from nearfar.suites.run import run_suite
    from nearfar.suites.suite import open_suite, suite_from_dict

    given = {}
    for each in sources:
        key, sign, path = each.partition("=")
        if not sign or not path:
            raise click.BadParameter(f"must be NAME=PATH, got {each!r}", param_hint="--data")
        given[key] = path
    suite = open_suite(name)
    if settings:
        suite = suite_from_dict(replace(suite, override=(*suite.override, *settings)).to_dict(), name)
    out = out or Path("runs") / f"{suite.name}.jsonl"
    failed = run_suite(
        suite,
        out,
        given=given,
        only=suite.data_of(only),
        methods=methods,
        seeds=seeds,
        workers=workers,
        threads=threads,
        peer=peer,
        say=click.echo,
    )
    click.echo(f"nearfar bench table {out}")
    if failed:
        raise click.ClickException(f"{failed} cells failed, their messages are in {out}; run it again to retry them")


@bench.command("audit")
@click.argument("source", metavar="DATA")
@click.option("--split", default="train", show_default=True, type=click.Choice(["train", "val", "test"]))
@click.option("--rate", default=0.2, show_default=True, type=click.FloatRange(0, 1, True, True), help="Wrong labels.")
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(min=1), help="Draws of the noise.")
@click.option("--classes", type=click.IntRange(min=2), help="Only the first so many classes.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1), help="Of torch.")
def bench_audit(source: str, split: str, rate: float, seeds: int, classes: int | None, threads: int) -> None:
    """Make labels of DATA (vectors or drawings) wrong and see how well the audit and its rivals find them."""
    import torch

    from nearfar.audit.noise_benchmark import measured_table

    torch.set_num_threads(threads)
    click.echo(measured_table(source, split=split, rate=rate, seeds=seeds, classes=classes))


@bench.command("table")
@click.argument("file", metavar="RESULTS", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--format",
    "style",
    type=click.Choice(["markdown", "csv", "html", "latex"]),
    help="[default: by the name of --out, else markdown]",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="A file.  [default: print]")
def bench_table(file: Path, style: str | None, out: Path | None) -> None:
    """Means over seeds, paired differences to the baseline, and 95% intervals of both."""
    from nearfar.suites.results import read_results
    from nearfar.suites.table import table

    by_name = {".csv": "csv", ".html": "html", ".htm": "html", ".tex": "latex"}
    suffix = "" if out is None else out.suffix.lower()
    _give(table(read_results(file), style or by_name.get(suffix, "markdown")), out)


@bench.command("figure")
@click.argument("file", metavar="RESULTS", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--x", required=True, metavar="KEY", help="The setting that the suite sweeps, e.g. data.noise.rate.")
@click.option("--metric", default="recall@1", show_default=True)
@click.option("--method", "methods", multiple=True, metavar="NAME", help="Draw only this method.  [default: all]")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="An SVG file.  [default: print]")
def bench_figure(file: Path, x: str, metric: str, methods: tuple[str, ...], out: Path | None) -> None:
    """A metric against the values of the sweep, one line a method."""
    from nearfar.suites.figure import draw_figure
    from nearfar.suites.results import read_results

    if out is not None and out.suffix.lower() != ".svg":
        raise click.BadParameter(f"a figure is an .svg file, got {out}", param_hint="--out")
    _give(draw_figure(read_results(file), x=x, metric=metric, methods=methods), out)


@bench.command("plot")
@click.argument("kind", type=click.Choice(["map", "similarity", "decay", "settings", "overfitting"]))
@click.argument("sources", metavar="RUN...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="An .svg or .png file.")
@click.option(
    "--split", type=click.Choice(["train", "val", "test"]), help="map, similarity: the split.  [default: train]"
)
@click.option("--classes", type=click.IntRange(min=1), help="map, similarity: number of random classes.  [default: 20]")
@click.option("--seed", type=int, help="map, similarity: random seed.  [default: 0]")
@click.option("--x", metavar="KEY", help="settings: the setting that the suite sweeps.")
@click.option("--y", metavar="KEY", help="settings: a setting in which the methods differ.")
@click.option("--metric", help="settings, overfitting: the metric.  [default: recall@1]")
def bench_plot(kind: str, sources: tuple[Path, ...], out: Path, **options: Any) -> None:
    """Plot a RUN: its embedding space, similarities or penalty decay, or a metric over the epochs of several runs.

    `settings` takes the results of a suite and plots a metric over two settings.
    """
    from nearfar.suites.plots import write_plot

    write_plot(kind, sources, out, **options)


def _give(text: str, out: Path | None) -> None:
    if out is None:
        click.echo(text, nl=False)
    else:
        from nearfar.files import atomic

        with atomic(out) as draft:
            draft.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
