"""Models of the hub: downloaded only on request, here from a server on this machine, and then found in the cache."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from nearfar.errors import NearfarError
from nearfar.models import create_embedder
from text_cases import save_bert

COMMIT = "a" * 40
NAME = "somebody/small-bert"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serve a small model as the hub does. The value is the list of the paths that were requested."""
    library = pytest.importorskip("huggingface_hub")
    folder = tmp_path / "served"
    save_bert(folder)
    (folder / "pytorch_model.bin").write_bytes(b"never downloaded")
    requested: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            requested.append(self.path)
            if self.path.startswith(f"/api/models/{NAME}/tree/"):
                sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
                tree = [{"type": "file", "path": name, "size": size, "oid": "0" * 40} for name, size in sizes.items()]
                body = json.dumps(tree).encode()
            elif self.path.startswith(f"/api/models/{NAME}"):
                files = [{"rfilename": path.name} for path in sorted(folder.iterdir())]
                body = json.dumps({"id": NAME, "sha": COMMIT, "siblings": files}).encode()
            elif self.path.startswith(f"/{NAME}/resolve/{COMMIT}/"):
                body = (folder / self.path.rpartition("/")[2]).read_bytes()
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("x-repo-commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(library.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        library.constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(library.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield requested
    server.shutdown()
    server.server_close()


def test_a_model_is_downloaded_only_on_request_and_once(hub: list[str], tmp_path: Path) -> None:
    name = f"transformers:{NAME}"
    with pytest.raises(NearfarError, match="downloads nothing unless told to: add --download") as caught:
        create_embedder(name, pretrained=True)
    assert "\n" not in str(caught.value)
    assert hub == []
    embedder = create_embedder(name, pretrained=True, download=True).eval()
    assert any(path.endswith("model.safetensors") for path in hub)
    assert not any(path.endswith(".bin") for path in hub)
    hub.clear()
    again = create_embedder(name, pretrained=True).eval()
    assert hub == []
    backbone: Any = again.backbone
    tokens = torch.from_numpy(backbone.tokenizer.batch(["owl robin"], max_tokens=8))
    torch.testing.assert_close(again.backbone(tokens), embedder.backbone(tokens))
    assert embedder.config["download"] is False


def test_extras_are_imported_only_if_they_are_used() -> None:
    code = (
        "import sys, nearfar.cli.train_command, nearfar.search.command, nearfar.models; nearfar.models.names();"
        "print([name for name in ('transformers', 'tokenizers', 'huggingface_hub', 'timm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"


def test_a_download_that_fails_is_reported_in_one_line(hub: list[str]) -> None:
    with pytest.raises(NearfarError, match="nobody/nothing cannot be downloaded") as caught:
        create_embedder("transformers:nobody/nothing", pretrained=True, download=True)
    assert "\n" not in str(caught.value)
