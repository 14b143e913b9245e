"""Nothing that is read can run code or reach outside of what was named. What is promised: SECURITY.md."""

from __future__ import annotations

import ast
import io
import os
import pickle
import re
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nearfar
from nearfar.config.tree import parse_setting, read_config
from nearfar.data import open_data
from nearfar.data.images import ImageReader, decode_image
from nearfar.data.layouts.arrays import open_npz
from nearfar.errors import NearfarError
from nearfar.models import read_tensors
from nearfar.runs import load_embedder
from nearfar.training.checkpoint import load_state
from tests.harness.hostile import _bomb

SOURCE = Path(nearfar.__file__).parent
ROOT = SOURCE.parent.parent
MODULES = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "cPickle"}
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "os.system",
    "os.popen",
}


def dangers(text: str) -> list[str]:
    """What in a module could run what it reads."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.split(".")[0] in MODULES]
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        options = {each.arg: ast.unparse(each.value) for each in node.keywords}
        if name in CALLS or name.endswith((".extractall", ".extract")) or options.get("shell") == "True":
            found.append(name)
        if name == "torch.load" and options.get("weights_only") != "True":
            found.append("torch.load without weights_only=True")
        if name in ("np.load", "numpy.load") and options.get("allow_pickle", "False") != "False":
            found.append("np.load with allow_pickle")
        if options.get("trust_remote_code", "False") != "False":
            found.append("trust_remote_code")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from joblib import load",
        "eval('1')",
        "exec(x)",
        "yaml.load(f)",
        "tar.extractall(p)",
        "subprocess.run(c, shell=True)",
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "np.load(p, allow_pickle=True)",
        "AutoModel.from_pretrained(n, trust_remote_code=True)",
    ],
)
def test_dangers_are_seen(text: str) -> None:
    assert dangers(text)


def test_no_module_has_dangers() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 150
    found = {str(path.relative_to(SOURCE)): dangers(path.read_text(encoding="utf-8")) for path in files}
    assert {name: each for name, each in found.items() if each} == {}


class Evil:
    """Would make a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.safetensors", "state", "model", "x.npz", "x.npy", "config.yaml"])
def test_a_pickle_is_never_run(name: str, tmp_path: Path) -> None:
    ran, path = tmp_path / "ran", tmp_path / name
    (tmp_path / "labels.txt").write_text("a\n")
    readers = {
        "state": load_state,
        "model": load_embedder,
        "x.npz": open_data,
        "x.npy": open_data,
        "config.yaml": read_config,
    }
    read = readers.get(name, read_tensors)
    objects = np.array([Evil(ran)], dtype=object)
    kinds = [pickle.dumps(Evil(ran)), pickle.dumps({"state_dict": Evil(ran)})]
    for write in (
        lambda file: torch.save(Evil(ran), file),
        lambda file: torch.save({"a": torch.ones(1), "b": Evil(ran)}, file, _use_new_zipfile_serialization=False),
        lambda file: np.savez(file, features=objects, labels=np.zeros(1, int)),
        lambda file: np.save(file, objects),
    ):
        buffer = io.BytesIO()
        write(buffer)
        kinds.append(buffer.getvalue())
    kinds.append(f"a: !!python/object/apply:os.mkdir ['{ran}']\n".encode())
    for data in kinds:
        path.write_bytes(data)
        with pytest.raises(NearfarError):
            read(path)
        assert not ran.exists()
    pickle.loads(kinds[0])
    assert ran.exists()  # the attack would have worked


def test_a_setting_runs_nothing(tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match=r"loss\.x"):
        parse_setting(f"loss.x=!!python/object/apply:os.mkdir ['{tmp_path / 'ran'}']")
    assert not (tmp_path / "ran").exists()


def test_yaml_that_grows_or_contains_itself(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    for text in ("\n".join(lines), "a: &a [*a]", "a: &a {b: *a}", "[" * 5000):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(NearfarError, match=r"config\.yaml"):
            read_config(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    "name", ["../evil.png", "/tmp/evil.png", "a/../../evil.png", "C:/evil.png", "a\\..\\..\\evil.png"]
)
def test_members_that_climb_out_of_an_archive(name: str, tmp_path: Path) -> None:
    path = tmp_path / "data.tar"
    with tarfile.open(path, "w") as archive:
        for each in ("a/0.png", "b/0.png", name):
            archive.addfile(tarfile.TarInfo(each), io.BytesIO())
    with pytest.raises(NearfarError, match="1 member refused"):
        open_data(path)
    kept = open_data(path, allow_partial=True)
    assert kept.paths == ("a/0.png", "b/0.png")
    assert {each.name for each in tmp_path.iterdir()} == {"data.tar"}  # nothing is ever unpacked


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_members_that_are_no_files(kind: bytes, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        for name in ("a/0.png", "b/0.png"):
            archive.addfile(tarfile.TarInfo(name))
        odd = tarfile.TarInfo("a/1.png")
        odd.type, odd.linkname = kind, "/etc/passwd"
        archive.addfile(odd)
    assert open_data(tmp_path / "data.tar", allow_partial=True).paths == ("a/0.png", "b/0.png")


def test_a_link_out_of_the_data_gives_nothing_but_pictures(tmp_path: Path) -> None:
    """Links are followed, as people keep data in them; but only what decodes as a picture ever comes back."""
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "data" / "a" / "0.png").symlink_to(secret)
    Image.new("RGB", (4, 4)).save(tmp_path / "data" / "b" / "0.png")
    reader = ImageReader(open_data(tmp_path / "data"))
    with pytest.raises(NearfarError) as error:
        reader.read_image(0)
    assert "the secret" not in str(error.value)
    (tmp_path / "table.csv").write_text(f"path,label\n../{tmp_path.name}/secret.txt,a\n{secret},b\n")
    with pytest.raises(NearfarError):
        ImageReader(open_data(tmp_path / "table.csv")).read_image(0)


@pytest.mark.parametrize("side", [9_000, 20_000, 65_500])
def test_picture_bombs(side: int) -> None:
    with pytest.raises(NearfarError, match=r"bomb\.png.*limit"):
        decode_image(_bomb(side), "bomb.png")


def test_a_zip_bomb_as_npz(tmp_path: Path) -> None:
    """A member that says it has more bytes than the machine; nothing of it is unpacked."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w") as packed:
        for i in range(4096):
            packed.writestr(f"a{i}.npy", b"")
    data = bytearray(path.read_bytes())
    start = data.find(b"PK\x01\x02")
    while start >= 0:  # every entry of the directory says 4 GB, 17 TB in all
        data[start + 24 : start + 28] = (2**32 - 2).to_bytes(4, "little")
        start = data.find(b"PK\x01\x02", start + 1)
    path.write_bytes(data)
    with pytest.raises(NearfarError, match=r"bomb\.npz needs 17,592,\d+,\d+,\d+ bytes of memory"):
        open_npz(path)


def test_a_terminal_obeys_no_file_name(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b]0;owned\x07\n.csv"
    path.write_text("x\n")
    with pytest.raises(NearfarError) as error:
        open_data(path)
    assert str(error.value).isprintable()
    assert "\\x1b]0;owned\\x07" in str(error.value)


def test_every_pin_is_exact_and_every_dependency_is_pinned() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", line), line
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    assert len(pinned) == len(lines)
    project = (ROOT / "pyproject.toml").read_text()
    core = re.search(r"\ndependencies = \[(.*?)\n\]", project, re.DOTALL)
    assert core is not None
    named = {name.lower() for name in re.findall(r'"([A-Za-z0-9_.-]+)>=', core[1])}
    assert len(named) == 10
    assert named <= pinned
