"""The targets of the fuzzer: the file formats that nearfar reads, settings, and HTTP requests."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import torch
from safetensors.torch import save

from nearfar.audit.decisions import read_decisions
from nearfar.config.merge import from_dict, resolve
from nearfar.config.tree import read_config
from nearfar.data import Manifest, open_data, save_manifest
from nearfar.data.images import decode_image
from nearfar.errors import NearfarError
from nearfar.models import read_tensors
from nearfar.runs import load_embedder, save_embedder
from nearfar.search import Index, storage
from nearfar.training import Config, Run, train
from nearfar.training.checkpoint import load_state, make_metadata, save_state
from nearfar.training.log import read_log
from nearfar.training.splits import open_manifest
from nearfar.training.trainer import Trainer
from tests.harness.faults import configured, vectors
from tests.harness.fuzz_input import KNOWN, NUMBERS, PLACES, WORDS, Rng, array, changed, encoded, setting, tree, zipped
from tests.harness.hostile import hostile_requests

Attempt = Callable[[Rng], object]


class Targets:
    """The targets, with valid files for them, all in one folder.

    `all` maps the name of a target to its share of the inputs and a function that tries one random input.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = vectors(folder)
        self.manifest = open_data(self.source)
        self.run = train(configured("proxy-anchor", self.source), folder / "run", progress=False, say=lambda _: None)
        self.loop = asyncio.new_event_loop()
        self.all: dict[str, tuple[int, Attempt]] = {
            "settings": (20, self._settings),
            "config": (9, self._config()),
            "parts": (1, self._parts),
            "csv": (12, self._csv()),
            "npz": (8, self._npz()),
            "npy": (3, self._npy()),
            "tar": (4, self._tar()),
            "image": (12, self._image()),
            "index": (6, self._index()),
            "state": (6, self._state()),
            "model": (3, self._model()),
            "weights": (3, self._weights()),
            "log": (2, self._log()),
            "decisions": (4, self._decisions()),
            "http": (3, self._http()),
        }
        if find_spec("pyarrow"):  # without pyarrow, nearfar refuses every .parquet file
            self.all["parquet"] = (2, self._parquet())

    def close(self) -> None:
        """Close the event loop that handles the HTTP requests."""
        self.loop.close()

    def _file(self, name: str, seeds: Sequence[bytes], read: Callable[[Path], object], *, make: Any = None) -> Attempt:
        """Return an attempt that writes a file with random content and reads it.

        Args:
            name: Name of the file, which an error must contain.
            seeds: Contents of valid files, to which random damage is applied.
            read: Function that reads the file.
            make: Function that returns other random content, for 40% of the attempts. None uses only `seeds`.
        """
        path = self.folder / name.partition(".")[0] / name
        path.parent.mkdir(exist_ok=True)

        def attempt(rng: Rng) -> None:
            data = make(rng) if make is not None and rng.random() < 0.4 else changed(rng, seeds)
            path.write_bytes(data)
            try:
                read(path)
            except NearfarError as error:
                if name not in str(error):
                    raise AssertionError(f"the error does not name {name}: {error}") from error
                raise

        return attempt

    def _settings(self, rng: Rng) -> Config:
        return resolve(
            "features", width=10, settings=["loss.name=triplet", *(setting(rng) for _ in range(rng.choice((1, 1, 2))))]
        )

    def _config(self) -> Attempt:
        small = b"loss: {name: triplet, margin: 0.1}\nsteps: 5\noptimizer:\n  lr: 0.001\n  betas: [0.9, 0.99]\n"
        bomb = b"a: &a [1, 2, 3]\nb: &b [*a, *a, *a]\nloss: &c {name: triplet, x: [*b, *b, *b]}\npacing: *c\n"

        def read(path: Path) -> None:
            plain = read_config(path)
            try:
                from_dict(plain).to_yaml()
                resolve("features", width=10, file=plain)
            except NearfarError as error:  # this error names the setting, not the file
                raise NearfarError(f"{path}: {error}") from error

        return self._file(
            "config.yaml", [small, bomb], read, make=lambda rng: json.dumps(tree(rng)).encode("utf-8", "replace")
        )

    def _parts(self, rng: Rng) -> None:
        base = [f"data.source={self.source}", "loss.name=triplet", "model.dim=4", "steps=1", "batches.size=8"]
        value = rng.choice((*NUMBERS, -1, 0.5, *KNOWN.split()))
        config = resolve("features", width=10, settings=[*base, "threads=1", f"{rng.choice(PLACES)}={value}"])
        out = self.folder / "parts"
        try:
            Trainer(config, open_manifest(config.data), out, say=lambda _: None)
        finally:
            if (out / "config.yaml").exists():
                raise AssertionError("an incomplete run directory was not removed")
            shutil.rmtree(out, ignore_errors=True)

    def _csv(self) -> Attempt:
        folder = self.folder / "csv" / "images"
        folder.mkdir(parents=True)
        for i in range(6):
            (folder / f"{i}.png").touch()
        rows = [(f"images/{i}.png", "ab"[i % 2], ("train", "test")[i % 2]) for i in range(6)]
        plain = "path,label\n" + "".join(f"{path},{label}\n" for path, label, _ in rows)
        more = "label,split,path,role\n" + "".join(f'"{label}",{split},{path},\n' for path, label, split in rows)
        manifest = Manifest(
            labels=np.arange(3),
            classes=("a", "b", "c"),
            split=np.full(3, "train"),
            paths=tuple(rows[i][0] for i in range(3)),
            root=folder.parent,
        )
        save_manifest(manifest, folder.parent / "csv.csv")
        seeds = [plain.encode(), more.encode(), (folder.parent / "csv.csv").read_bytes()]

        def make(rng: Rng) -> bytes:
            if rng.random() < 0.5:
                known = {
                    key: tree(rng)
                    for key in ("root", "classes", "source", "notes", "fingerprint")
                    if rng.random() < 0.5
                }
                return f"# nearfar manifest 1: {json.dumps(known)}\n{plain}".encode("utf-8", "replace")
            lines = [
                [rng.choice((*WORDS, *rows[0])) for _ in range(rng.choice((2, 2, 3)))] for _ in range(rng.randrange(4))
            ]
            return "\n".join(map(",".join, [["path", "label", "split"][: rng.choice((1, 2, 3))], *lines])).encode(
                "utf-8", "surrogatepass"
            )

        return self._file(
            "csv.csv",
            seeds,
            lambda path: open_data(path, allow_partial=len(path.read_bytes()) % 2 == 0).fingerprint,
            make=make,
        )

    def _parquet(self) -> Attempt:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")

        paths = self.folder / "parquet"
        paths.mkdir()
        for i in range(4):
            (paths / f"{i}.png").touch()
        seeds = []
        for labels in (["a", "a", "b", "b"], [1, 1, 2, 3], [1.5, None, 2.0, 3.0]):
            table, buffer = pyarrow.table({"path": [f"{i}.png" for i in range(4)], "label": labels}), io.BytesIO()
            parquet.write_table(table, buffer)
            seeds.append(buffer.getvalue())
        return self._file("parquet.parquet", seeds, lambda path: open_data(path).fingerprint)

    def _npz(self) -> Attempt:
        features, pixels, labels = np.eye(4, 3, dtype=np.float32), np.zeros((4, 2, 2), np.uint8), np.array([0, 0, 1, 2])
        names = np.array(["a", "b", "c"])
        seeds = [
            zipped(features=features, labels=labels),
            zipped(pixels=pixels, labels=names[labels], split=np.array(["train"] * 4)),
            zipped(
                x=features, y=labels, names=names, is_eval=np.array([True, False, True]), paths=np.array(list("wxyz"))
            ),
        ]
        keys = (
            "features",
            "x",
            "pixels",
            "labels",
            "y",
            "classes",
            "names",
            "split",
            "is_eval",
            "role",
            "paths",
            "note",
        )

        def make(rng: Rng) -> bytes:
            good: dict[str, Any] = {"features": features, "labels": labels}
            return zipped(**(good | {rng.choice(keys): array(rng) for _ in range(rng.randint(1, 3))}))

        return self._file("npz.npz", seeds, lambda path: open_data(path).fingerprint, make=make)

    def _npy(self) -> Attempt:
        buffer = io.BytesIO()
        np.save(buffer, np.eye(4, 3, dtype=np.float32))
        (self.folder / "npy").mkdir()
        (self.folder / "npy" / "labels.txt").write_text("a\na\nb\nc\n")

        def make(rng: Rng) -> bytes:
            other = io.BytesIO()
            np.save(other, array(rng))
            return other.getvalue()

        return self._file("npy.npy", [buffer.getvalue()], lambda path: open_data(path).fingerprint, make=make)

    def _tar(self) -> Attempt:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name in ("a/0.png", "a/1.png", "b/0.png", "c/" + "x" * 150 + ".png"):
                info = tarfile.TarInfo(name)
                info.size = 20
                archive.addfile(info, io.BytesIO(bytes(20)))
        plain = buffer.getvalue()[: 512 * 16]

        def make(rng: Rng) -> bytes:
            other = io.BytesIO()
            with tarfile.open(fileobj=other, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for _ in range(3):
                    info = tarfile.TarInfo(
                        rng.choice(("../x.png", "/etc/x.png", "a/x.png", "a/../../x.png", "a\\..\\x.png"))
                    )
                    info.type = rng.choice(
                        (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
                    )
                    info.linkname = rng.choice(("/etc/passwd", "..", "a"))
                    info.pax_headers = {rng.choice(("size", "path", "GNU.sparse.map", "mtime")): rng.choice(WORDS[:12])}
                    archive.addfile(info)
            return gzip.compress(other.getvalue(), 1) if rng.random() < 0.05 else other.getvalue()

        return self._file("tar.tar", [plain], open_data, make=make)

    def _image(self) -> Attempt:
        kinds = (
            ("PNG", "RGB"),
            ("PNG", "P"),
            ("PNG", "LA"),
            ("JPEG", "RGB"),
            ("JPEG", "CMYK"),
            ("GIF", "P"),
            ("BMP", "RGB"),
        )
        seeds = [
            encoded(*kind) for kind in (*kinds, ("TIFF", "RGB"), ("TIFF", "I;16"), ("WEBP", "RGB"), ("PPM", "RGB"))
        ]

        def attempt(rng: Rng) -> None:
            decode_image(changed(rng, seeds), "image", draft=rng.choice((None, 4)))

        return attempt

    def _index(self) -> Attempt:
        good, folder = self.folder / "good-index", self.folder / "index"
        Index.from_vectors(np.eye(6, 4, dtype=np.float32), labels=[0, 0, 1, 1, 2, 2], classes=("a", "b", "c")).save(
            good
        )
        files = {path.name: path.read_bytes() for path in sorted(good.iterdir())}
        about = json.loads(files[storage.INDEX_FILE])
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)

        def attempt(rng: Rng) -> None:
            name = rng.choice((storage.INDEX_FILE, storage.INDEX_FILE, *files))
            if rng.random() < 0.5:
                other = {**about, rng.choice(list(about)): tree(rng)}
                other.pop("sha256", None)
                data = json.dumps(other | {"sha256": storage._digest(other)}).encode()
                name = storage.INDEX_FILE
            else:
                data = changed(rng, [files[name]])
            (folder / name).write_bytes(data)
            try:
                Index.load(folder)
            finally:
                (folder / name).write_bytes(files[name])

        return attempt

    def _state(self) -> Attempt:
        path = self.folder / "seed.state"
        save_state(path, {"step": 3, "list": [1, (2, None)], "w": torch.ones(3, 2), "opt": {0: {"m": torch.zeros(2)}}})
        kinds = ("dict", "list", "tuple", "tensor", "channels last", "x")

        def make(rng: Rng) -> bytes:
            inner: Any = {rng.choice(kinds): rng.choice((tree(rng), "/w", [["a", {"tensor": "/w"}]], [[[], 1]]))}
            return under_sum({"/w": torch.ones(3)}, inner if rng.random() < 0.8 else tree(rng))

        return self._file("state.safetensors", [path.read_bytes()], load_state, make=make)

    def _model(self) -> Attempt:
        path = self.folder / "seed.model"
        save_embedder(self.run.embedder(), path)
        tensors, about = self.run.embedder().state_dict(), self.run.embedder().config

        def make(rng: Rng) -> bytes:
            odd = {rng.choice(list(about)): rng.choice((tree(rng), 10**6, 10**12, "mlp", "resnet18", "/etc/passwd"))}
            return under_sum(tensors, rng.choice(({"embedder": about | odd}, {"embedder": tree(rng)}, tree(rng))))

        return self._file("model.safetensors", [path.read_bytes()], load_embedder, make=make)

    def _weights(self) -> Attempt:
        tensors = {"conv.weight": torch.ones(2, 2), "bn.bias": torch.zeros(3)}
        buffer = io.BytesIO()
        torch.save({"state_dict": tensors}, buffer)
        pickled = self._file("weights.pt", [buffer.getvalue()], read_tensors)
        plain = self._file("weights.safetensors", [save(tensors)], read_tensors)
        return lambda rng: (pickled if rng.random() < 0.5 else plain)(rng)

    def _log(self) -> Attempt:
        folder = self.folder / "log-run"
        folder.mkdir()
        shutil.copy(self.run.path / "config.yaml", folder)
        lines, scores = ((self.run.path / name).read_bytes() for name in ("log.jsonl", "scores.json"))

        def attempt(rng: Rng) -> None:
            (folder / "log.jsonl").write_bytes(changed(rng, [lines]))
            for entry in read_log(folder / "log.jsonl"):
                assert entry["step"] >= 0 or entry["kind"]
            (folder / "scores.json").write_bytes(
                changed(rng, [scores]) if rng.random() < 0.6 else json.dumps(tree(rng)).encode()
            )
            Run(folder).results()

        return attempt

    def _decisions(self) -> Attempt:
        names, manifest = self.manifest.classes, self.manifest
        rows = [
            f"{row},{manifest.name(row)},{names[manifest.labels[row]]},b,{what}\n"
            for row, what in enumerate(("keep", "relabel", "remove"))
        ]
        seed = ("row,path,label,suggested,decision\n" + "".join(rows)).encode()
        return self._file("decisions.csv", [seed], lambda path: read_decisions(manifest, path))

    def _http(self) -> Attempt:
        from nearfar.serve.api import create_app
        from nearfar.serve.collection import open_collection
        from nearfar.serve.server import guard_app

        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 255, (24, 12, 12), dtype=np.uint8)
        drawings = Manifest(labels=np.arange(24) % 4, classes=tuple("abcd"), split=np.full(24, "train"), pixels=pixels)
        save_manifest(drawings.split_by_class_order(), self.folder / "drawings.npz")
        settings = [
            f"data.source={self.folder / 'drawings.npz'}",
            "steps=1",
            "batches.size=8",
            "model.dim=4",
            "threads=1",
        ]
        config = resolve("pixels", recipe="proxy-anchor", settings=settings)
        run = train(config, self.folder / "web", progress=False, say=lambda _: None)
        app = guard_app(create_app(open_collection(run.path, say=lambda _: None)))

        def attempt(rng: Rng) -> None:
            seed = rng.randrange(1 << 30)
            request = next(islice(hostile_requests(8, "127.0.0.1", seed=seed), seed % 8, None))
            status, answer = self.loop.run_until_complete(asked(app, request))
            if status >= 500:
                raise AssertionError(f"status {status} for {request[:200]!r}")
            if status >= 400:
                raise NearfarError(answer[:200].decode("utf-8", "replace") or "not a valid HTTP request")

        return attempt


def under_sum(tensors: dict[str, torch.Tensor], header: Any) -> bytes:
    """Return the bytes of a safetensors file with a header and a valid checksum, as nearfar writes it."""
    text = json.dumps(header)
    try:
        return save(tensors, metadata=make_metadata(tensors, text))
    except UnicodeEncodeError:  # the header contains a lone surrogate
        return b""


async def asked(app: Any, request: bytes) -> tuple[int, bytes]:
    """Send a raw request to an ASGI app. Return status and body of the answer, or status 400 for invalid HTTP."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not words[1].isascii():
        return 400, b""
    target = words[1].removeprefix(b"http://127.0.0.1")
    path, _, query = target.partition(b"?")
    fields = [line.partition(b":") for line in lines]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": words[0].decode("ascii", "replace"),
        "scheme": "http",
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.strip().lower(), value.strip()) for name, sign, value in fields if sign and name.strip()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    status, parts, given = 0, [], False

    async def receive() -> dict[str, Any]:
        nonlocal given
        if given:
            return {"type": "http.disconnect"}
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, b"".join(parts)
