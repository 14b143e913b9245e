"""The command `nearfar serve`. Importing this module does not import its optional dependencies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nearfar.errors import NearfarError, install_hint

INTERRUPTED = 130  # as in nearfar.cli.edge: 128 + SIGINT


def serve_command(
    run: Path,
    *,
    host: str,
    port: int,
    token: str | None,
    split: str,
    skip_broken: bool = False,
    workers: int = 1,
    show_token: bool = True,
) -> None:
    """Run `nearfar serve`."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise NearfarError(f"nearfar serve needs {error.name}: {install_hint('web')}") from None
    from nearfar.serve.server import serve

    try:
        serve(
            run,
            host=host,
            port=port,
            token=token,
            split=split,
            skip_broken=skip_broken,
            workers=workers,
            show_token=show_token,
        )
    except SystemExit as end:  # raised on SIGTERM
        _end(end.code if isinstance(end.code, int) else 1)
        raise
    except KeyboardInterrupt:
        _end(INTERRUPTED, "Interrupted.")
        raise


def _end(code: int, message: str = "") -> None:
    """End the process at once if threads are still computing a map or an audit. Call this after the server's shutdown.

    A normal exit of Python would stop these threads inside C++ code, which aborts the process with another exit code.
    """
    from nearfar.serve.background_task import is_any_running

    if is_any_running():
        if message:
            print(message, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
