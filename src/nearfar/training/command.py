"""`nearfar train`: from words on a command line to a run and what it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nearfar.config.merge import resolve
from nearfar.config.schema import Config, Data
from nearfar.config.setting import build
from nearfar.config.tree import apply_settings, merge_trees, read_config
from nearfar.errors import NearfarError
from nearfar.formatting import counted, slug
from nearfar.runs import Run
from nearfar.training.allocator import keep_freed_memory
from nearfar.training.distributed import process_group
from nearfar.training.prepare import open_manifest
from nearfar.training.trainer import train

DEFAULT = "proxy-anchor"


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
    """Everything that the command does; `None` after a dry run."""
    if resume and out is not None and (out / "config.yaml").is_file() and source is None and file is None:
        if recipe or settings:
            raise NearfarError("--resume OUT goes on with the run's own settings: leave --recipe and --set out")
        config = Run(out).config
    else:
        config = configure(source, recipe=recipe, file=file, settings=settings, allow_partial=allow_partial)
    if dry_run:
        print(config.to_yaml(), end="")
        return None
    where = out or Path("runs") / slug(f"{Path(config.data.source).stem}-{config.recipe or config.loss['name']}")
    keep_freed_memory()
    with process_group.join_process_group():
        if process_group.is_main_process():
            print(f"{config.recipe or config.loss['name']} on {config.data.source}, to {where}")
        run = train(config, where, resume=resume, report=True, say=tqdm.write)
        if process_group.is_main_process():
            print(describe(run))
    return run


def launch(processes: int, *, source: str | None, settings: tuple[str, ...], **options: Any) -> int:
    """`nearfar train` with the same options in several processes of this machine, by torchrun; gives its exit code."""
    given = [("config" if name == "file" else name, value) for name, value in options.items()]
    words: list[str] = []
    for name, value in [*given, *(("set", each) for each in settings)]:
        if value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    words += [] if source is None else ["--", source]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.call([sys.executable, *torchrun, "-m", "nearfar", "train", *words])


def configure(
    source: str | None, *, recipe: str | None, file: Path | None, settings: tuple[str, ...], allow_partial: bool = False
) -> Config:
    """The configuration of a command line; opens the data to see of which kind it is."""
    tree = apply_settings({} if file is None else read_config(file), settings)
    given = {"source": source, "allow_partial": allow_partial or None}
    tree = merge_trees(tree, {"data": {key: value for key, value in given.items() if value is not None}})
    if "source" not in (tree.get("data") or {}):
        raise NearfarError("no data: name it, for example `nearfar train my_images` or `nearfar train sketches`")
    data: Data = build(Data, tree["data"], "data")
    manifest = open_manifest(data)
    width = None if manifest.features is None else int(manifest.features.shape[1])
    known = recipe or tree.get("recipe")
    if known is None and not (tree.get("loss") or {}).get("name"):
        known = DEFAULT
    return resolve(manifest.kind, width=width, recipe=known, file=tree)


def describe(run: Run) -> str:
    """What a finished run came to, in a few lines."""
    result = run.results()
    lines = [f"{counted(result['steps'], 'step')} in {result['seconds']:.0f} s; {_chosen(result)}"]
    for kind, title in (("untrained", "before training"), ("test", "test")):
        if kind in result:
            scores = "  ".join(f"{name} {100 * value:5.1f}" for name, value in result[kind].items())
            lines.append(f"{title + ':':17s}{scores}")
    if "warning" in result:
        lines.append(f"warning: {result['warning']}")
    lines.append(f"model: {run.path / 'model.safetensors'}")
    lines.append(f"report: {run.path / 'report.html'}")
    return "\n".join(lines)


def _chosen(result: dict[str, Any]) -> str:
    if result["selected_by"] == "last":
        return "the last weights were kept"
    return f"the best weights by {result['selected_by']} were kept, of epoch {result['epoch'] + 1}"
