"""Start or resume a run in a directory.

    run = train(config, Path("runs/mine"))

`train(config, path, resume=True)` continues a run that was killed. The final weights are bit-identical to those of an
uninterrupted run. Training on several processes with torchrun gives the same weights as training on one, up to rounding
(see `nearfar.training.distributed.process_group`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch import Tensor, nn

from nearfar.config.schema import Config
from nearfar.data import Manifest
from nearfar.data.layouts import PYTHON
from nearfar.directory_lock import lock_directory
from nearfar.errors import NearfarError
from nearfar.files import atomic, path_exists, remove_drafts
from nearfar.runs import CHECKPOINT, Run
from nearfar.training.components import check_label_sets
from nearfar.training.distributed import process_group
from nearfar.training.initialization import InitialStateCache
from nearfar.training.resume import check_same_settings, with_fingerprint
from nearfar.training.splits import open_manifest
from nearfar.training.trainer import Trainer

OnFinish = Callable[[Run, tuple[Manifest, Tensor] | None], object]


def train(
    config: Config,
    out: Path,
    *,
    manifest: Manifest | None = None,
    network: nn.Module | None = None,
    resume: bool = False,
    say: Callable[[str], object] = print,
    progress: bool = True,
    plan: bool = True,
    stop_after: int | None = None,
    initial_states: InitialStateCache | None = None,
    on_finish: OnFinish | None = None,
) -> Run:
    """Train a configuration in a run directory.

    Under torchrun, every process calls this with the same arguments and `out` on a shared disk. When torchrun restarts
    the processes, the run resumes automatically.

    Args:
        config: The configuration.
        out: The run directory.
        manifest: The data of `config.data` if it is already open.
        network: Your own network, which replaces the backbone of the configuration. If it is an embedder, it replaces
            the head as well.
        resume: If True, continue the run in `out`.
        say: Function that prints a message.
        progress: If True, show progress: a bar in a terminal, elsewhere a message every 30 seconds.
        plan: If True and the data are image files, time a few images first and say how long a new run takes.
        stop_after: Stop after this step as if the process had been killed, for tests.
        initial_states: Cache of initial states. Pass the same cache to several runs in one process, so that runs that
            start from the same network and data reuse their initial state.
        on_finish: Function that the main process calls with the finished run and the pair (test samples, their
            embeddings). The pair is None if this call did not compute the embeddings.

    Returns:
        The run.
    """
    with process_group.join_process_group(), _lock_run(out):
        if not process_group.is_main_process():
            say = _be_silent
        manifest = open_manifest(config.data) if manifest is None else manifest
        check_label_sets(config, manifest)
        config = with_fingerprint(config, manifest.fingerprint)
        resume = resume or (process_group.was_restarted() and path_exists(out / "config.yaml"))
        trainer: Trainer | None = None
        if resume and _load_resumable(config, out).finished:
            say(f"{out} is already finished")
        else:
            if not resume and path_exists(out / "config.yaml") and Run(out).has_started:
                raise NearfarError(f"{out} already contains a run: continue it with --resume, or choose another --out")
            process_group.check_ranks_agree(
                f"{resume} {config.to_yaml()}", "start all of them with the same command, with --out on a shared disk"
            )
            initial = None if initial_states is None else initial_states.get(config)
            plan = plan and not resume
            trainer = Trainer(config, manifest, out, say=say, initial=initial, network=network, plan=plan)
            # write config.yaml only now, so that an error in the lines above does not leave an incomplete run directory
            _write_config(config, out)
            if resume and trainer.state.load(out, say=say):
                say(f"resuming at step {trainer.state.step:,} of {trainer.steps:,}")
            else:
                say(trainer.summary)
            process_group.check_ranks_agree(f"step {trainer.state.step}", "keep --out on a disk that all of them share")
            trainer.fit(progress=progress, stop_after=stop_after)
            process_group.barrier()
        run = Run(out, network=network, data=manifest if config.data.source.startswith(PYTHON) else None)
        if on_finish is not None and run.finished and process_group.is_main_process():
            on_finish(run, None if trainer is None else trainer.test_embeddings)
        return run


def _lock_run(out: Path) -> AbstractContextManager[None]:
    """Lock a run directory, so that no other run can use it. The main process holds the lock for all processes."""
    if not process_group.is_main_process():
        return nullcontext()
    remedy = "wait until it ends, stop it, or choose another --out"
    return lock_directory(out, "train", state="is used", remedy=remedy)


def _load_resumable(config: Config, out: Path) -> Run:
    run = Run(out)
    check_same_settings(config, run.config)
    return run


def _write_config(config: Config, out: Path) -> None:
    if process_group.is_main_process():
        for folder in (out, (out / CHECKPOINT).parent):
            remove_drafts(folder)
        with atomic(out / "config.yaml") as draft:
            draft.write_text(config.to_yaml(), encoding="utf-8")


def _be_silent(text: str) -> None:
    """Discard a message. Processes other than the main one use this as `say`."""
