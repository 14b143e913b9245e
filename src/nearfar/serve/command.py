"""The command `nearfar serve`. Importing this module does not import its optional dependencies."""

from __future__ import annotations

from pathlib import Path

from nearfar.errors import NearfarError, install_hint


def serve_command(run: Path, *, host: str, port: int, token: str | None, split: str, skip_broken: bool = False) -> None:
    """Run `nearfar serve`."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise NearfarError(f"nearfar serve needs {error.name}: {install_hint('web')}") from None
    from nearfar.serve.server import serve

    serve(run, host=host, port=port, token=token, split=split, skip_broken=skip_broken)
