"""Error handling of the command line: every exception is printed as one line, and tracebacks are saved to a file."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import click

from nearfar.errors import NearfarError, is_out_of_memory

INTERRUPTED = 130  # as in shells: 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM
DEBUG = "NEARFAR_DEBUG"
RUN_DIRECTORY = "nearfar.run_directory"  # key in `click.Context.meta`


def remember_run(path: Path) -> None:
    """Record the run directory of the current command. Messages name it, and tracebacks are saved in it."""
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[RUN_DIRECTORY] = path


class OneLineErrors(click.Group):
    """A click group whose commands report every exception in one line, without a traceback.

    A `NearfarError` is printed as it is. For any other exception, the traceback is saved in the run directory if there
    is one, or else in the temporary directory, and the line names the file. Unless memory ran out, such an exception is
    a bug in nearfar. With NEARFAR_DEBUG=1, tracebacks are also printed.
    """

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # paths can contain bytes that are not UTF-8
        _end_on_sigterm()
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo(_describe_interruption(ctx.meta.get(RUN_DIRECTORY)), err=True)
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # click exits quietly if the reader of a pipe has ended, as in `nearfar losses | head`
            if os.environ.get(DEBUG, "") not in ("", "0"):
                traceback.print_exception(error, file=sys.stderr)
            raise click.ClickException(_describe(error, ctx.meta.get(RUN_DIRECTORY))) from None


def _end_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, so that locks and temporary files are removed before the command ends.

    Workers of torchrun keep the default behavior and end at once, because they may be waiting for a worker that has
    already ended.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread and "TORCHELASTIC_RUN_ID" not in os.environ:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))


def _describe_interruption(run: Path | None) -> str:
    if run is None:
        return "Interrupted."
    if not (run / "config.yaml").is_file():
        return f"Interrupted before training started: run the same command again to start {run}."
    return f"Interrupted. Continue with `nearfar train --resume --out {run}`."


def _describe(error: Exception, run: Path | None) -> str:
    if isinstance(error, NearfarError):
        return str(error)
    if is_out_of_memory(error):
        return str(
            NearfarError(
                "out of memory: close other programs, or use less data, smaller batches (batches.size, micro_batch) or "
                f"smaller images (images.crop); {_save_traceback(error, run)}"
            )
        )
    return str(
        NearfarError(
            f"{type(error).__name__}: {error}; this is a bug in nearfar, please report it; "
            f"{_save_traceback(error, run)}"
        )
    )


def _save_traceback(error: Exception, run: Path | None) -> str:
    """Save the traceback of an error and return a message that names the file."""
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    text = "".join(traceback.format_exception(error))
    files = [] if run is None else [run / f"traceback-{stamp}"]
    for file in [*files, Path(tempfile.gettempdir()) / f"nearfar-traceback-{stamp}"]:
        try:
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError:
            continue
        return f"its traceback is in {file}"
    return f"its traceback could not be saved: set {DEBUG}=1 to print it"
