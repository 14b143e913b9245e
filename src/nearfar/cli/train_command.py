"""`nearfar train`: configure a run, train it, and print and report its results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

import nearfar.compat.peer  # noqa: F401 - registers the setting loss.peer
from nearfar.cli.dry_run import check_run
from nearfar.cli.edge import remember_run
from nearfar.config.merge import gather_losses, resolve
from nearfar.config.schema import Config, Data
from nearfar.config.setting import build
from nearfar.config.tree import apply_settings, merge_trees, read_config
from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.formatting import clean_text, counted, slug
from nearfar.report.run_report import report_run
from nearfar.runs import Run
from nearfar.training.allocator import keep_freed_memory
from nearfar.training.distributed import process_group
from nearfar.training.finish import REMEDY
from nearfar.training.launch import train
from nearfar.training.pair_settings import choose_for_pairs
from nearfar.training.splits import open_manifest
from nearfar.training.start_scores import RAW_TITLE, start_title

DEFAULT = "proxy-anchor"
CACHE = "activations"  # name of the cache folder, next to the run directory


def train_command(
    source: str | None,
    *,
    recipe: str | None,
    file: Path | None,
    settings: tuple[str, ...],
    out: Path | None,
    resume: bool,
    allow_partial: bool,
    dry_run: bool,
) -> Run | None:
    """Run `nearfar train` and return the run, or None after a dry run."""
    manifest: Manifest | None = None
    if resume and out is None:
        raise NearfarError("--resume needs the run directory: add --out RUN")
    if resume and out is not None and source is None and file is None:
        run = Run(out)
        if (recipe or settings) and not run.has_started:
            raise NearfarError(
                f"{out}: this run has not trained a step yet: start it again with DATA and without --resume"
            )
        if recipe or settings:
            raise NearfarError("--resume uses the settings of the run: remove --recipe and --set")
        config = run.config
    else:
        cache = (Path("runs") if out is None else out.parent) / CACHE
        config, manifest = configure(
            source, recipe=recipe, file=file, settings=settings, cache=cache, allow_partial=allow_partial
        )
    if dry_run:
        manifest = open_manifest(config.data) if manifest is None else manifest
        checked = check_run(config, manifest)
        print(f"{config.to_yaml()}{checked}", end="")
        return None
    name = config.recipe or config.loss_name
    out = out or Path("runs") / slug(f"{Path(config.data.source).stem}-{name}")
    remember_run(out)
    keep_freed_memory()
    with process_group.join_process_group():
        if process_group.is_main_process():
            print(clean_text(f"{name} on {config.data.source}, to {out}"))
            for note in manifest.notes if manifest is not None else ():
                print(clean_text(f"note: {note}"))
        run = train(config, out, manifest=manifest, resume=resume, say=tqdm.write, on_finish=report_run)
        if process_group.is_main_process():
            print(describe_run(run))
    return run


def launch(processes: int, *, source: str | None, settings: tuple[str, ...], **options: Any) -> int:
    """Run `nearfar train` with the same options in several processes on this machine, with torchrun.

    Returns:
        The exit code of torchrun.
    """
    flags = [("config" if name == "file" else name, value) for name, value in options.items()]
    arguments: list[str] = []
    for name, value in [*flags, *(("set", setting) for setting in settings)]:
        if value is not None and value is not False:
            arguments += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    arguments += [] if source is None else ["--", source]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    with subprocess.Popen([sys.executable, *torchrun, "-m", "nearfar", "train", *arguments]) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()  # torchrun then ends its workers
            raise


def configure(
    source: str | None,
    *,
    recipe: str | None,
    file: Path | None,
    settings: tuple[str, ...],
    cache: Path | None = None,
    allow_partial: bool = False,
) -> tuple[Config, Manifest]:
    """Return the configuration that a command line describes, and its data. Defaults depend on the kind of data.

    If `cache` is given and there is no GPU, training on image files uses smaller images or, if `model.train_from` is
    set, activations that are cached in this folder.
    """
    tree = gather_losses(apply_settings({} if file is None else read_config(file), settings))
    flags = {"source": source, "allow_partial": allow_partial or None}
    tree = merge_trees(tree, {"data": {key: value for key, value in flags.items() if value is not None}})
    if "source" not in (tree.get("data") or {}):
        raise NearfarError(
            "DATA is missing: pass it, for example `nearfar train my_images` or `nearfar train sketches`"
        )
    data: Data = build(Data, tree["data"], "data")
    manifest = open_manifest(data)
    width = None if manifest.features is None else int(manifest.features.shape[1])
    tree, recipe = choose_for_pairs(tree, manifest, recipe or tree.get("recipe"))
    if recipe is None and not (tree.get("loss") or {}).get("name"):
        recipe = DEFAULT
    has_gpu = process_group.local_device(str(tree.get("device", Config.device))).type != "cpu"
    config = resolve(
        manifest.kind,
        width=width,
        recipe=recipe,
        file=tree,
        samples=len(manifest.rows("train")),
        cache=None if has_gpu or cache is None else str(cache),
    )
    return config, manifest


def describe_run(run: Run) -> str:
    """Describe the results of a finished run in a few lines."""
    result = run.results()
    if result["selected_by"] == "last":
        selected = "kept the last weights"
    elif result["epoch"] is None:
        selected = f"kept the network before training, which has the best {result['selected_by']} score"
    else:
        selected = f"kept the weights of epoch {result['epoch'] + 1}, which has the best {result['selected_by']} score"
    lines = [f"{counted(result['steps'], 'step')} in {result['seconds']:.0f} s; {selected}"]
    titles = {"raw": RAW_TITLE, "untrained": start_title(run.config), "test": "test"}
    width = max((len(title) + 2 for kind, title in titles.items() if kind in result), default=0)
    for kind, title in titles.items():
        if kind in result:
            scores = "  ".join(f"{name} {100 * value:5.1f}" for name, value in result[kind].items())
            lines.append(f"{title + ':':{width}s}{scores}")
    lines += [f"note: {note}" for note in result.get("notes", ())]
    if "interpolation" in result:
        trained = result["interpolation"]
        lines.append(f"interpolation: the weights are {trained:g} x trained + {1 - trained:g} x untrained")
    if "no_gain" in result:
        lines.append(f"warning: {result['no_gain']}: {REMEDY}")
    if "warning" in result:
        lines.append(f"warning: {result['warning']}")
    lines.append(f"model: {run.path / 'model.safetensors'}")
    lines.append(f"report: {run.path / 'report.html'}")
    return "\n".join(lines)
