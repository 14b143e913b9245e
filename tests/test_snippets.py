"""Run every code block of the README and the docs, unless the line above it says why not.

    <!-- not run: takes three minutes -->

The blocks of a page run in order: Python in one namespace per page, commands in a folder with the data that the pages
use (`world`). A command runs only once. Blocks that are not run are still checked: their commands, options, recipes,
settings, extras and modules must exist.
"""

from __future__ import annotations

import doctest
import importlib.util
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from nearfar.cli import main
from nearfar.cli.train_command import DEFAULT
from nearfar.config.merge import resolve
from nearfar.registry import Registry

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
BLOCK = re.compile(r"(?:^<!-- not run: (\S[^\n]*) -->\n)?^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    ((?:nearfar|python -m \w+\.\w+)(?:.*\\\n)*.*)$", re.MULTILINE)
TEXT = ("text", "yaml", "csv", "diff")
KINDS = {"python": "python", "pycon": "example", "": "commands", **dict.fromkeys(TEXT, "text")}
SECONDS = 60.0  # CPU time limit of one block

# Why a block is not run, by its first command, for pages that do not say it themselves.
NOT_RUN = {
    "pip install '.[pretrained,web,onnx]'": "trains for minutes, and then serves until it is stopped",
    "pip install '.[pretrained,web]'": "trains for minutes, and then serves until it is stopped",
    "nearfar train my_images --recipe proxy-anchor --out runs/mine --processes 2": "starts several processes",
    "python -m benchmarks.scale whole --samples 200000": "takes minutes",
    "nearfar bench run profs --data cub-vectors=cub.npz --workers 2": "takes hours and needs the vectors of CUB",
    "export CUB_VECTORS=cub.npz": "takes hours and needs datasets",
    "nearfar bench plot map RUN --out map.svg": "needs other runs",
    "nearfar advise my_images": "takes ten minutes",
    "nearfar bench run SUITE --peer": "takes hours",
}


@dataclass(frozen=True)
class Block:
    """Fenced block of a page. `reason` says why it is not run."""

    kind: str
    text: str
    reason: str | None

    def commands(self) -> list[list[str]]:
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def read_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order. A block of an unknown kind is an error."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"^ +```", text, re.MULTILINE), (
        f"{page.name}: a block must start at the left margin, otherwise it does not run"
    )
    result = []
    for reason, info, body in BLOCK.findall(text):
        assert info in KINDS, f"{page.name}: unknown kind of block {info!r}; known: {', '.join(map(repr, KINDS))}"
        block = Block("example" if body.startswith(">>>") else KINDS[info], body, reason or None)
        if block.kind == "commands" and block.reason is None:
            block = Block(block.kind, body, NOT_RUN.get(shlex.join(block.commands()[0])))
        result.append(block)
    return result


def check_command(words: list[str]) -> None:
    """Check that the subcommand, options, recipe, settings, extra, target and module of a command exist."""
    match words:
        case ["nearfar", *rest]:
            command: click.Command = main
            while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
                name, *rest = rest
                assert name in command.commands, f"{shlex.join(words)}: has no command {name}"
                command = command.commands[name]
            options, _, _ = command.make_parser(click.Context(command)).parse_args(rest)
            if command.name == "train":
                resolve("files", recipe=options.get("recipe") or DEFAULT, settings=options.get("settings") or ())
        case ["pip", "install", *packages]:
            for extra in re.findall(r"nearfar\[(.*?)\]", " ".join(packages)):
                for name in extra.split(","):
                    assert re.search(rf"^{name} = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE), name
        case ["make", *targets]:
            for target in targets:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module) is not None, module


@dataclass
class World:
    """Folder with the data that the pages use, and the commands that ran in it."""

    folder: Path
    done: set[str] = field(default_factory=set)

    def run(self, words: list[str]) -> None:
        line = shlex.join(words)
        if line in self.done or words[0] in ("pip", "make"):  # pip and make would change the environment
            return
        assert words[0] == "nearfar", f"{line}: only nearfar commands run here: say above the block why it is not run"
        assert words[1] != "serve", f"{line}: runs until it is stopped: say above the block why it is not run"
        result = CliRunner().invoke(main, words[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
        self.done.add(line)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, vectors: str) -> World:
    """Create my_images, new_images, vectors, a small run on my_images, and decisions on its labels."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog", "fox", "owl"):
        colors = rng.integers(0, 256, (6, 6, 3))
        for i in range(6):
            noisy = np.clip(colors + rng.normal(0, 25, colors.shape), 0, 255).astype(np.uint8)
            target = folder / ("my_images" if i < 5 else "new_images") / kind
            target.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noisy).resize((48, 40)).save(target / f"{i}.jpg")
    (folder / "photo.jpg").write_bytes((folder / "my_images/cat/0.jpg").read_bytes())
    (folder / "vectors.npz").write_bytes(Path(vectors).read_bytes())
    np.save(folder / "vectors.npy", rng.normal(size=(2, 8)).astype(np.float32))
    result = World(folder)
    network = "model.backbone=small model.pretrained=false model.pooling=average model.dim=8"
    small = f"{network} images.crop=32 data.workers=0 epochs=2"
    settings = [word for each in small.split() for word in ("--set", each)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result.run(["nearfar", "train", "my_images", *settings, "--out", "runs/mine"])
    decisions = "row,path,label,suggested,decision\n3,cat/3.jpg,cat,owl,relabel\n7,dog/2.jpg,dog,cat,remove\n"
    for name in ("decisions.csv", "runs/mine/decisions.csv"):
        (folder / name).write_text(decisions)
    return result


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise an error if the block takes more CPU time, which other processes do not affect."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds:.0f} s of CPU time: say above the block why it is not run")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def find_registries() -> list[Registry[Any]]:
    """Return the registries of all loaded modules."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("nearfar.")]
    return [value for module in modules for value in vars(module).values() if isinstance(value, Registry)]


@EVERY_PAGE
def test_blocks_run(page: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.folder)
    for registry in find_registries():  # a page may add an entry
        registry.names()
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in read_blocks(page):
        for words in block.commands() if block.kind == "commands" else ():
            check_command(words)
        if block.reason is not None:
            continue
        with limited(SECONDS):
            if block.kind == "python":
                exec(compile(block.text, str(page), "exec", dont_inherit=True), namespace)
            elif block.kind == "example":
                run_example(block.text, namespace, page.name)
            elif block.kind == "commands":
                for words in block.commands():
                    world.run(words)


def run_example(text: str, namespace: dict[str, Any], name: str) -> None:
    """Run a block of >>> lines and compare the output. The last line of an error is enough."""
    if "Traceback" not in text:
        text = re.sub(r"^(?=\w+Error: )", "Traceback (most recent call last):\n    ...\n", text, flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, namespace, name, name, 0)
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(test, out=output.append, clear_globs=False).failed == 0, "".join(output)


@EVERY_PAGE
def test_indented_commands_exist(page: Path) -> None:
    for command in INDENTED.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        check_command(shlex.split(command.replace("\\\n", " "), comments=True))


@EVERY_PAGE
def test_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("nearfar trian sketches", "has no command trian"),
        ("nearfar train sketches --recip mpa", "No such option"),
        ("nearfar train sketches --recipe mpaa", "unknown recipe"),
        ("nearfar train sketches --set optimizer.rate=1", "optimizer has no 'rate'"),
        ("pip install 'nearfar[wep]'", "wep"),
        ("make demos", "demos"),
        ("python -m benchmarks.sped", "sped"),
    ],
)
def test_a_stale_command_is_found(line: str, error: str) -> None:
    with pytest.raises(Exception, match=error):
        check_command(shlex.split(line))


def test_a_block_that_fails_or_takes_too_long_is_found(tmp_path: Path, world: World) -> None:
    (tmp_path / "page.md").write_text("```\nnearfar losses tripled\n```\n<!-- not run: hours -->\n```\ncurl x\n```\n")
    fails, marked = read_blocks(tmp_path / "page.md")
    with pytest.raises(AssertionError, match="did you mean 'triplet'"):
        world.run(fails.commands()[0])
    assert marked.reason == "hours"
    with pytest.raises(AssertionError, match="only nearfar commands run here"):
        world.run(marked.commands()[0])
    with pytest.raises(AssertionError, match="Expected"):
        run_example(">>> 1 + 1\n3\n", {}, "page")
    with pytest.raises(TimeoutError, match="say above the block"), limited(0.05):
        exec("while True: pass")
