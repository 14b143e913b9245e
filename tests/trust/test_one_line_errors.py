"""Every command ends with one line that a person can act on, and never with a Python traceback."""

from __future__ import annotations

import os
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from nearfar.cli import main
from nearfar.errors import NearfarError
from nearfar.search.index import Index
from nearfar.training.log import read_log
from training_cases import saved_vectors

NOBODY = 65534
SHORT = [word for each in ("steps=4", "model.dim=4", "batches.size=8", "threads=1") for word in ("--set", each)]


def invoke(*words: object) -> Result:
    """Run the command and check that it ends by an exit code, not by an exception."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def refuse(*words: object) -> str:
    """Run a command that fails with one line on stderr, and return this line."""
    result = invoke(*words)
    assert result.exit_code == 1, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Error: ")
    return lines[0]


def save_features(path: Path, labels: list[int], *, scale: float = 1.0, dim: int = 6) -> Path:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(max(labels) + 1, dim))[labels] + 0.2 * rng.normal(size=(len(labels), dim))
    np.savez(path, features=(scale * features).astype(np.float32), labels=np.array(labels))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on vectors of 6 numbers."""
    folder = tmp_path_factory.mktemp("trained")
    source = save_features(folder / "data.npz", [label for label in range(8) for _ in range(5)])
    assert invoke("train", source, "--out", folder / "run", *SHORT).exit_code == 0
    return folder / "run"


@pytest.mark.parametrize("untrained", ["true", "false"])
def test_data_without_positives_trains_and_says_that_there_are_no_scores(untrained: str, tmp_path: Path) -> None:
    source = save_features(tmp_path / "singletons.npz", list(range(12)))
    result = invoke("train", source, "--out", tmp_path / "run", *SHORT, "--set", f"untrained={untrained}")
    assert result.exit_code == 0, result.output
    assert "no two test samples have the same class" in result.output
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert (tmp_path / "run" / "report.html").is_file()
    assert "have the same class" in invoke("eval", tmp_path / "run").stderr


def test_the_model_is_saved_even_if_the_scores_fail(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no score today")

    monkeypatch.setattr("nearfar.training.evaluate.evaluate", fail)
    line = refuse("train", vectors, "--out", tmp_path / "run", *SHORT, "--set", "untrained=false")
    assert "no score today" in line
    assert str(tmp_path / "run" / "model.safetensors") in line
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.mark.parametrize("labels", [[0] * 12, [0, 1]], ids=["one class", "two samples"])
def test_one_training_class_is_refused_before_training(labels: list[int], tmp_path: Path) -> None:
    source = save_features(tmp_path / "data.npz", labels)
    line = refuse("train", source, "--out", tmp_path / "run", *SHORT)
    assert "only one class" in line
    assert not (tmp_path / "run").exists()


def test_audit_of_one_class(tmp_path: Path) -> None:
    source = save_features(tmp_path / "data.npz", [0] * 12)
    assert "data.npz: all samples have the same class" in refuse("audit", source, "--out", tmp_path / "audit")


@pytest.mark.parametrize("count", [20, 2])
def test_audit_with_noise_of_few_samples(count: int, tmp_path: Path) -> None:
    source = save_features(tmp_path / "data.npz", [row % 2 for row in range(count)])
    result = invoke("audit", source, "--noise", "0.2", "--out", tmp_path / "audit")
    if count == 20:
        assert result.exit_code == 0, result.output
        assert "Of the 20 most suspicious labels" in result.output
    else:
        assert "--noise" in result.stderr


@pytest.mark.parametrize("command", ["data", "train", "audit"])
def test_an_unknown_home_directory(command: str) -> None:
    assert "~nosuchuser" in refuse(command, "~nosuchuser/images")


def test_a_symbolic_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    line = refuse("data", tmp_path / "loop")
    assert "symbolic links form a loop" in line
    assert "did you mean" not in line


def test_names_that_are_too_long(vectors: str, tmp_path: Path) -> None:
    name = "x" * 300
    for words in (
        ["train", vectors, "--out", tmp_path / name],
        ["train", "--resume", "--out", tmp_path / name],
        ["audit", vectors, "--out", tmp_path / name],
        ["data", name],
        ["audit", name],
    ):
        assert "File name too long" in refuse(*words)


def test_folders_1500_deep(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        line = refuse("data", tmp_path)
        assert "contains no images" in line or "File name too long" in line
    finally:
        _remove_chain(tmp_path)


def _remove_chain(folder: Path) -> None:
    """Delete nested folders from the inside, because shutil.rmtree recurses."""
    handles = [os.open(folder, os.O_RDONLY)]
    while os.listdir(handles[-1]):
        handles.append(os.open("d", os.O_RDONLY, dir_fd=handles[-1]))
        if len(handles) > 200:  # stay below the limit of open files
            os.close(handles.pop(0))
    os.close(handles.pop())
    while handles:
        os.rmdir("d", dir_fd=handles[-1])
        os.close(handles.pop())
    if (folder / "d").exists():
        _remove_chain(folder)


def test_empty_metrics(vectors: str, tmp_path: Path) -> None:
    line = refuse("train", vectors, "--out", tmp_path / "run", *SHORT, "--set", "metrics=[]")
    assert "metrics is empty" in line
    assert not (tmp_path / "run").exists()


def test_betas_of_whole_numbers_are_accepted_and_text_is_refused(vectors: str, tmp_path: Path) -> None:
    words = ["train", vectors, "--out", tmp_path / "run", *SHORT, "--set"]
    assert "optimizer.betas[0] must be a number, got 'a'" in refuse(*words, "optimizer.betas=[a,b]")
    assert invoke(*words, "optimizer.betas=[0,0]").exit_code == 0


def test_images_without_pixels(tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz", pixels=np.zeros((12, 0, 0), np.uint8), labels=np.repeat(np.arange(4), 3))
    for command in ("data", "train", "audit"):
        assert "empty.npz: pixels must be at least 1 x 1" in refuse(command, tmp_path / "empty.npz")


def test_features_that_are_too_small_for_float32(tmp_path: Path) -> None:
    source = save_features(tmp_path / "tiny.npz", [label for label in range(6) for _ in range(4)], scale=1e-40)
    for command in ("train", "audit"):
        assert "tiny.npz: features has values of at most" in refuse(command, source)


def test_data_of_another_kind_than_the_model(run: Path, tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (20, 20), (number, 2, 3)).save(tmp_path / "images" / name / f"{number}.png")
    other = save_features(tmp_path / "other.npz", [label for label in range(8) for _ in range(5)], dim=4)
    for data, kind in ((tmp_path / "images", "image files"), (other, "vectors of 4 numbers")):
        for words in (["eval", run, data], ["audit", data, "--model", run, "--out", tmp_path], ["index", run, data]):
            assert f"has {kind}, but {run} takes vectors of 6 numbers" in refuse(*words)


def test_out_of_memory_names_the_settings_to_lower(vectors: str, tmp_path: Path) -> None:
    settings = ["model.head=mlp", "model.hidden=1000000000000"]
    words = [word for each in settings for word in ("--set", each)]
    line = refuse("train", vectors, "--out", tmp_path / "run", *SHORT, *words)
    assert "needs more memory than is available" in line
    assert "enforce fail" not in line


@pytest.mark.parametrize(
    "message",
    ["[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory", "could not create a primitive"],
)
def test_out_of_memory_in_a_step(message: str, vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr("nearfar.training.trainer.train_step", fail)
    line = refuse("train", vectors, "--out", tmp_path / "run", *SHORT)
    assert "micro_batch" in line
    assert "batches.size" in line


def test_a_bug_is_one_line_with_the_path_of_its_traceback(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug\nof two lines")

    monkeypatch.setattr("nearfar.training.trainer.train_step", fail)
    line = refuse("train", vectors, "--out", tmp_path / "run", *SHORT)
    assert "ZeroDivisionError: a bug of two lines" in line
    (saved,) = (tmp_path / "run").glob("traceback-*.txt")
    assert str(saved) in line
    assert "in fail" in saved.read_text()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("nearfar.data.open_data", fail)
    line = refuse("data", vectors)
    (saved,) = tmp_path.glob("nearfar-traceback-*.txt")
    assert str(saved) in line


def test_debug_prints_the_traceback(vectors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("nearfar.data.open_data", fail)
    monkeypatch.setenv("NEARFAR_DEBUG", "1")
    result = CliRunner().invoke(main, ["data", vectors])
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert "ZeroDivisionError: a bug" in result.stderr


def as_nobody(work: Callable[[], object]) -> str:
    """Run `work` in a child without the rights of root, and return the message of its NearfarError."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            work()
            message = "no error"
        except NearfarError as error:
            message = str(error)
        except BaseException as error:
            message = f"bug: {type(error).__name__}: {error}"
        os.write(writing, message.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        message = pipe.read()
    os.waitpid(child, 0)
    return message


def test_files_that_may_not_be_read(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    import tempfile

    from nearfar.data import open_data

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        saved_vectors(folder / "vectors.npz", classes=4, per_class=3, noise=0.1)
        (folder / "closed" / "class").mkdir(parents=True)
        (folder / "images.tar").write_bytes(bytes(10240))
        (folder / "index").mkdir()
        Index.from_vectors(np.eye(3, dtype=np.float32)).save(folder / "index")
        (folder / "log.jsonl").write_text('{"kind": "step", "step": 1}\n')
        for path in ("closed", "images.tar", "vectors.npz", "index/index.json", "log.jsonl"):
            (folder / path).chmod(0)
        for work in (
            lambda: open_data(folder / "closed"),
            lambda: open_data(folder / "images.tar"),
            lambda: open_data(folder / "vectors.npz"),
            lambda: Index.load(folder / "index"),
            lambda: read_log(folder / "log.jsonl"),
        ):
            message = as_nobody(work)
            assert "ermission" in message, message
            assert not message.startswith("bug")
        (folder / "closed").chmod(0o700)


def test_resume_of_a_run_that_does_not_exist(tmp_path: Path) -> None:
    assert "nosuch: not a run directory" in refuse("train", "--resume", "--out", tmp_path / "nosuch")
    assert "--resume needs the run directory: add --out" in refuse("train", "--resume")


def test_suggestions_of_data_compare_names_and_not_folders(tmp_path: Path) -> None:
    for name in ("sketches", "emb.npz", "images"):
        (tmp_path / name).mkdir()
    for name in ("nosuch", "my.zip"):
        assert "did you mean" not in refuse("data", tmp_path / name)
    assert f"did you mean '{tmp_path / 'images'}'?" in refuse("data", tmp_path / "imagse")
    assert "did you mean 'sketches'?" in refuse("data", "sketchs")


@pytest.mark.parametrize(
    "name", ["triplet", "cosface", "hap2s", "rdml", "margin", "pair-margin", "proxy-anchor", "mpa"]
)
def test_negative_margins_are_refused(name: str) -> None:
    from nearfar.losses import ProxyLoss, create, loss_class

    parameters = signature(loss_class(name)).parameters
    option = next(key for key in ("margin", "m", "delta") if key in parameters)
    sizes = {"classes": 3, "dim": 2} if issubclass(loss_class(name), ProxyLoss) else {}
    for value in (-3.0, float("nan")):
        with pytest.raises(ValueError, match=f"{option} must be finite and not negative"):
            create(name, **sizes, **{option: value})


def test_an_unknown_kind_of_data_names_the_kinds() -> None:
    from nearfar.config.merge import resolve

    with pytest.raises(ValueError, match="kind must be one of 'pixels', 'features', 'text', 'files', got 'pictures'"):
        resolve("pictures")
