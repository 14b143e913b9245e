"""Models that are saved, uploaded to a fake hub on this machine, and loaded again."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import nearfar
from nearfar.errors import NearfarError
from nearfar.runs import Run
from nearfar.sharing import FILES
from own_parts import Bars

SHA = "a" * 40


class FakeHub(BaseHTTPRequestHandler):
    """The few requests of a hub that an upload and a download need. Files are kept in memory."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.read_body()
        if self.path == "/api/repos/create":
            address = f"http://127.0.0.1:{self.server.server_address[1]}/me/model"
            self.answer(json.dumps({"url": address, "name": "me/model", "id": "me/model"}).encode())
        elif self.path == "/api/validate-yaml":
            self.answer(json.dumps({"errors": [], "warnings": []}).encode())
        elif self.path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            self.answer(json.dumps({"files": modes}).encode())
        elif "/commit/main" in self.path:
            for line in body.splitlines():
                value = json.loads(line)["value"]
                if "content" in value:
                    self.files[value["path"]] = base64.b64decode(value["content"])
            address = f"http://127.0.0.1:{self.server.server_address[1]}/me/model/commit/{SHA}"
            self.answer(json.dumps({"commitUrl": address, "commitOid": SHA, "success": True}).encode())
        else:
            self.answer(b"", status=404)

    def read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/me/model/revision"):
            siblings = [{"rfilename": name} for name in self.files]
            self.answer(json.dumps({"id": "me/model", "sha": SHA, "siblings": siblings, "tags": []}).encode())
        elif self.path.startswith("/api/models/me/model/tree"):
            tree = [{"type": "file", "path": name, "size": len(data), "oid": SHA} for name, data in self.files.items()]
            self.answer(json.dumps(tree).encode())
        elif self.path.startswith(f"/me/model/resolve/{SHA}/"):
            data = self.files[self.path.rpartition("/")[2]]
            digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
            self.answer(data, {"X-Repo-Commit": SHA, "ETag": f'"{digest}"'})
        else:
            self.answer(b"", status=404)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def answer(self, data: bytes, headers: dict[str, str] | None = None, *, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@pytest.fixture
def hub() -> Iterator[tuple[str, dict[str, bytes]]]:
    files: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (FakeHub,), {"files": files}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", files
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train a built-in backbone on drawings, which are white on black."""
    bars = Bars()
    pixels = np.stack([255 - bars.pixels(row) // 2 for row in range(len(bars))]) * (np.arange(24) > 15)[:, None]
    labels = [row % 6 for row in range(len(bars))]
    out = tmp_path_factory.mktemp("runs") / "drawings"
    data = (pixels.astype(np.uint8), labels)
    return nearfar.fit("small-conv", data, out=out, steps=2, batch_size=12, say=lambda _: None, progress=False)


def test_a_saved_model_is_complete(run: Run, tmp_path: Path) -> None:
    folder = run.save_pretrained(tmp_path / "model", license="mit")
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    _, front, card = (folder / "README.md").read_text().split("---\n", 2)
    about = yaml.safe_load(front)
    assert (about["library_name"], about["license"]) == ("nearfar", "mit")
    scores = {metric["type"]: metric["value"] for metric in about["model-index"][0]["results"][0]["metrics"]}
    assert scores == pytest.approx(run.results()["test"], abs=1e-6)
    assert card.lstrip().startswith("# proxy-anchor on array")
    config = json.loads((folder / "config.json").read_bytes())
    assert config["arrays"] == {"shape": [24, 24], "drawings": True}
    preprocessing = json.loads((folder / "preprocessor_config.json").read_bytes())
    assert preprocessing["image_mean"] == list(run.embedder().mean)


def test_a_saved_model_encodes_as_the_run(run: Run, tmp_path: Path) -> None:
    folder = run.save_pretrained(tmp_path / "model")
    image = Image.new("L", (60, 60), 255)
    image.paste(0, (10, 10, 40, 20))
    image.save(tmp_path / "query.png")
    for query in (tmp_path / "query.png", image):
        np.testing.assert_array_equal(nearfar.load(folder).encode(query), nearfar.load(run).encode(query))


def test_loading_needs_three_lines_and_no_training_code(run: Run, tmp_path: Path) -> None:
    folder = run.save_pretrained(tmp_path / "model")
    image = tmp_path / "query.png"
    Image.new("L", (24, 24), 255).save(image)
    code = (
        f"import nearfar\nmodel = nearfar.load({str(folder)!r})\nprint(model.encode([{str(image)!r}]).shape)\n"
        "import sys\nunwanted = ('nearfar.losses', 'nearfar.training.trainer', 'transformers', 'huggingface_hub')\n"
        "print([name for name in unwanted if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["(1, 512)", "[]"]


def test_upload_and_download(
    run: Run, hub: tuple[str, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    endpoint, files = hub
    assert run.push_to_hub("me/model", token="hf_test", endpoint=endpoint) == f"{endpoint}/me/model"
    assert sorted(files) == sorted(FILES)
    with pytest.raises(NearfarError, match=r"not in the local cache of the Hub.*pass download=True"):
        nearfar.load("me/model", endpoint=endpoint)
    x = torch.rand(2, 1, 24, 24)
    loaded = nearfar.load("me/model", endpoint=endpoint, download=True)
    np.testing.assert_array_equal(loaded.encode(x), nearfar.load(run).encode(x))
    np.testing.assert_array_equal(nearfar.load("me/model").encode(x), loaded.encode(x))  # from the cache


def test_what_is_refused(run: Run, tmp_path: Path, hub: tuple[str, dict[str, bytes]]) -> None:
    folder = run.save_pretrained(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(NearfarError, match=r"pytorch_model.bin may run code.*convert it with safetensors"):
        nearfar.load(folder)
    (folder / "config.json").write_text("[")
    with pytest.raises(NearfarError, match=r"config.json: damaged"):
        nearfar.load(folder)
    with pytest.raises(NearfarError, match="no such run, saved model, index or backbone; did you mean 'resnet18'"):
        nearfar.load("resnet81")
    with pytest.raises(NearfarError, match="'small' has no public weights"):
        nearfar.load("small")
    with pytest.raises(NearfarError, match="repo_id must have the form USER/NAME, got 'x'"):
        run.push_to_hub("x")
    with pytest.raises(NearfarError, match="you/model: cannot be uploaded"):
        run.push_to_hub("you/model", token="hf_test", endpoint=f"{hub[0]}/nowhere")
