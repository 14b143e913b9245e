"""Every block of code of the README and the docs is run, or says in the line above it why not.

    <!-- not run: takes three minutes -->

Blocks of a page run in order: Python in a namespace of the page's own, commands in a folder that has what the pages
speak of (`world`). A command that ran before is not run again. Blocks that are not run are still read: their commands,
options, recipes, settings, extras and modules must exist.
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
SECONDS = 60.0  # of the processor, at most, for one block; all together take less

# Why a block is not run whose page does not say it, by its first command.
NOT_RUN = {
    "nearfar train my_images --recipe proxy-anchor --out runs/mine --processes 2": "several processes",
    "python -m benchmarks.scale whole --samples 200000": "minutes",
    "nearfar bench run profs --data cub-vectors=cub.npz --workers 2": "hours, and CUB's vectors",
    "export CUB_VECTORS=cub.npz": "hours, and data sets",
    "nearfar bench plot map RUN --out map.svg": "runs of its own",
    "nearfar advise my_images": "ten minutes",
    "nearfar bench run SUITE --peer": "hours",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `reason` says why it is not run."""

    kind: str
    text: str
    reason: str | None

    def commands(self) -> list[list[str]]:
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in order; one of a kind that nobody knows is an error."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"^ +```", text, re.MULTILINE), f"{page.name}: blocks begin at the left margin, else none runs"
    found = []
    for reason, info, body in BLOCK.findall(text):
        assert info in KINDS, f"{page.name}: a block is {info!r}; known: {', '.join(map(repr, KINDS))}"
        block = Block("example" if body.startswith(">>>") else KINDS[info], body, reason or None)
        if block.kind == "commands" and block.reason is None:
            block = Block(block.kind, body, NOT_RUN.get(shlex.join(block.commands()[0])))
        found.append(block)
    return found


def check_command(words: list[str]) -> None:
    """What a command speaks of is there: subcommand and options, recipe and settings, extra, target, module."""
    match words:
        case ["nearfar", *rest]:
            command: click.Command = main
            while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
                name, *rest = rest
                assert name in command.commands, f"{shlex.join(words)}: there is no {name}"
                command = command.commands[name]
            options, _, _ = command.make_parser(click.Context(command)).parse_args(rest)
            if command.name == "train":
                resolve("files", recipe=options.get("recipe") or DEFAULT, settings=options.get("settings") or ())
        case ["pip", "install", *packages]:
            for extra in re.findall(r"nearfar\[(.*?)\]", " ".join(packages)):
                for each in extra.split(","):
                    assert re.search(rf"^{each} = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE), each
        case ["make", *targets]:
            for target in targets:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module) is not None, module


@dataclass
class World:
    """A folder with what the pages speak of, and the commands that ran there."""

    folder: Path
    done: set[str] = field(default_factory=set)

    def run(self, words: list[str]) -> None:
        line = shlex.join(words)
        if line in self.done or words[0] in ("pip", "make"):  # these would change the environment: checked, not run
            return
        assert words[0] == "nearfar", f"{line}: only nearfar is run; say above the block why it is not run"
        result = CliRunner().invoke(main, words[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
        self.done.add(line)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, vectors: str) -> World:
    """my_images, new_images, vectors, a run on my_images (small, two steps), and decisions on its labels."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog", "fox", "owl"):
        colors = rng.integers(0, 256, (6, 6, 3))
        for i in range(6):
            noisy = np.clip(colors + rng.normal(0, 25, colors.shape), 0, 255).astype(np.uint8)
            place = folder / ("my_images" if i < 5 else "new_images") / kind
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noisy).resize((48, 40)).save(place / f"{i}.jpg")
    (folder / "photo.jpg").write_bytes((folder / "my_images/cat/0.jpg").read_bytes())
    (folder / "vectors.npz").write_bytes(Path(vectors).read_bytes())
    np.save(folder / "vectors.npy", rng.normal(size=(2, 8)).astype(np.float32))
    made = World(folder)
    network = "model.backbone=small model.pretrained=false model.pooling=average model.dim=8"
    small = f"{network} images.crop=32 data.workers=0 epochs=2"
    settings = [word for each in small.split() for word in ("--set", each)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made.run(["nearfar", "train", "my_images", *settings, "--out", "runs/mine"])
    decisions = "row,path,label,suggested,decision\n3,cat/3.jpg,cat,owl,relabel\n7,dog/2.jpg,dog,cat,remove\n"
    for name in ("decisions.csv", "runs/mine/decisions.csv"):
        (folder / name).write_text(decisions)
    return made


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """An error when the block takes longer, in time of the process, which other work does not stretch."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds:.0f} s of the processor: say above the block why it is not run")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def registries() -> list[Registry[Any]]:
    """The registries of all modules that are loaded."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("nearfar.")]
    return [value for module in modules for value in vars(module).values() if isinstance(value, Registry)]


@EVERY_PAGE
def test_blocks_run(page: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.folder)
    for registry in registries():  # a page may add an entry
        registry.names()
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page):
        for words in block.commands() if block.kind == "commands" else ():
            check_command(words)
        if block.reason is not None:
            continue
        with limited(SECONDS):
            if block.kind == "python":
                exec(compile(block.text, str(page), "exec"), namespace)
            elif block.kind == "example":
                run_example(block.text, namespace, page.name)
            elif block.kind == "commands":
                for words in block.commands():
                    world.run(words)


def run_example(text: str, namespace: dict[str, Any], name: str) -> None:
    """A block of >>> lines gives what it shows; of an error the last line is enough."""
    if "Traceback" not in text:
        text = re.sub(r"^(?=\w+Error: )", "Traceback (most recent call last):\n    ...\n", text, flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, namespace, name, name, 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(test, out=said.append, clear_globs=False).failed == 0, "".join(said)


@EVERY_PAGE
def test_commands_that_stand_as_records_exist(page: Path) -> None:
    for command in INDENTED.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        check_command(shlex.split(command.replace("\\\n", " "), comments=True))


@EVERY_PAGE
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("nearfar trian sketches", "there is no trian"),
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
    fails, marked = blocks(tmp_path / "page.md")
    with pytest.raises(AssertionError, match="did you mean 'triplet'"):
        world.run(fails.commands()[0])
    assert marked.reason == "hours"
    with pytest.raises(AssertionError, match="only nearfar is run"):
        world.run(marked.commands()[0])
    with pytest.raises(AssertionError, match="Expected"):
        run_example(">>> 1 + 1\n3\n", {}, "page")
    with pytest.raises(TimeoutError, match="say above the block"), limited(0.05):
        exec("while True: pass")
