"""The Dockerfile: its sources, extras, pins and commands exist. The image itself is not built here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from nearfar.cli import main
from nearfar.serve.guard import PROBES

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
LINES = [line.split(maxsplit=1) for line in TEXT.splitlines() if line.strip() and not line.startswith("#")]


def values(instruction: str) -> list[str]:
    return [line[1] for line in LINES if line[0] == instruction]


def test_copied_files_exist_and_are_not_ignored() -> None:
    sources = [word for value in values("COPY") if "--from" not in value for word in value.split()[:-1]]
    assert "src" in sources
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= set(sources), "the build reads them"


def test_pins_and_extras_are_those_of_the_project() -> None:
    (pinned,) = re.findall(r"torch==([\d.]+)", TEXT)
    assert f"torch=={pinned}\n" in (ROOT / "constraints.txt").read_text()
    (extras,) = re.findall(r'"\.\[(.+?)\]"', TEXT)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(known)


def test_command_is_valid_and_runs_without_root() -> None:
    command = [*json.loads(values("ENTRYPOINT")[0]), *json.loads(values("CMD")[0])]
    assert command[0] == "nearfar"
    serve = main.commands[command[1]]
    options, _, _ = serve.make_parser(click.Context(serve)).parse_args(command[2:])
    (port,) = values("EXPOSE")
    assert (options["run"], options["host"], options["port"]) == ("/data/run", "0.0.0.0", port)
    (user,) = values("USER")
    assert all(int(number) >= 1000 for number in user.split(":"))
    assert [line[0] for line in LINES].index("USER") > max(i for i, line in enumerate(LINES) if line[0] == "RUN")
    (health,) = values("HEALTHCHECK")
    program = json.loads(health.partition("CMD ")[2])[2]
    (url,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", program)
    assert url[0] == port
    assert url[1] in PROBES
    compile(program, "HEALTHCHECK", "exec")


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root to become another user")
def test_an_unprivileged_user_can_use_the_variables(tmp_path: Path) -> None:
    """Run the command as the user of the image, with its variables and a home directory that it cannot write to."""
    program = "import os; assert os.getuid() == 10001; import nearfar.serve.server, matplotlib; print('imported')"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    environment |= dict(re.findall(r"([A-Z]+)=(\S+)", " ".join(values("ENV")[-1:])))
    environment |= {"PATH": os.environ["PATH"], "HOME": "/proc", "MPLCONFIGDIR": str(tmp_path)}
    reachable = subprocess.run(
        ["setpriv", "--reuid", "10001", "--regid", "10001", "--clear-groups", sys.executable, "-c", "import nearfar"],
        env=environment,
        capture_output=True,
        timeout=120,
    )
    if reachable.returncode:
        pytest.skip("the Python of the tests cannot be used by another user")
    done = subprocess.run(
        ["setpriv", "--reuid", "10001", "--regid", "10001", "--clear-groups", sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
    )
    assert done.stdout == "imported\n", done.stderr
