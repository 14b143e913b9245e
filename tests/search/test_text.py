"""Search among texts: index, queries, page, ONNX and safetensors exports, audit, of a run on a small BERT."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from nearfar.audit.command import audit_command
from nearfar.cli import main
from nearfar.cli.train_command import configure
from nearfar.errors import NearfarError
from nearfar.report.run_report import report_run
from nearfar.runs import Run
from nearfar.search.encoder import Encoder
from nearfar.search.export_model import export_onnx, export_safetensors
from nearfar.training.launch import train
from text_cases import save_bert, sentences, write_csv

ROWS = [*sentences(8), ("24/7 hammer", "tool")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("text")
    save_bert(folder / "bert")
    data = write_csv(folder / "t.csv", ROWS)
    settings = (f"model.backbone=transformers:{folder / 'bert'}", "epochs=null", "steps=2", "batches.size=12")
    config, manifest = configure(str(data), recipe="proxy-anchor", file=None, settings=settings)
    return train(config, folder / "run", manifest=manifest, say=lambda _: None, on_finish=report_run)


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_report_shows_texts(run: Run) -> None:
    page = (run.path / "report.html").read_text(encoding="utf-8")
    shown = [text for text, _ in ROWS if text in page]
    assert len(shown) > 5


def test_a_text_finds_the_texts_nearest_to_it(run: Run) -> None:
    text = "flute horn violin piano"
    found = json.loads(invoke("search", run.path, text, "-k", 3, "--json"))[0]
    assert found["query"] == text
    assert found["results"][0]["name"] == text
    assert found["results"][0]["distance"] < 1e-5
    assert "24/7 hammer" in invoke("search", run.path, str(len(ROWS) - 1), "-k", 1)
    out = run.path.parent / "page.html"
    invoke("search", run.path, text, "--html", out)
    assert out.read_text(encoding="utf-8").count(text) >= 2
    encoder = Encoder(run)
    with pytest.raises(NearfarError, match="was trained on texts"):
        _ = encoder.images


def test_an_index_of_other_texts(run: Run, tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text(json.dumps({"text": "crow finch", "label": "bird"}) + "\n")
    printed = invoke("index", run.path, tmp_path / "more.jsonl", "--out", tmp_path / "index")
    assert ": 1 vector of 16 dimensions, 1 class, exact" in printed
    assert "crow finch" in invoke("search", run.path, "crow", "--index", tmp_path / "index")
    np.savez(tmp_path / "f.npz", features=np.eye(4, dtype=np.float32), labels=np.arange(4) // 2)
    with pytest.raises(NearfarError, match="has features, not texts, but"):
        Run(run.path).evaluate(tmp_path / "f.npz", split="all")


def test_onnx_takes_tokens_of_any_length(run: Run, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    tokenizers = pytest.importorskip("tokenizers")
    encoder = Encoder(run)
    path, difference = export_onnx(encoder, tmp_path)
    assert difference < 1e-4
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_padding()
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for texts in (["owl"], ["owl robin crow", "red", "flute horn violin piano horn"]):
        batch = tokenizer.encode_batch(texts)
        ids, mask = (np.array([getattr(text, part) for text in batch]) for part in ("ids", "attention_mask"))
        (found,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
        expected = torch.nn.functional.normalize(torch.from_numpy(encoder.embed_texts(texts)))
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
    assert "tokenizer.json" in (tmp_path / "README.md").read_text()


def test_the_snippet_of_the_model_card_loads_the_export(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_safetensors(Encoder(run), tmp_path)
    text = (tmp_path / "README.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    scope: dict[str, torch.Tensor] = {}
    exec(code, scope)
    assert scope["embedding"].shape == (2, 16)


def test_the_audit_lists_texts(run: Run, tmp_path: Path) -> None:
    audit_command(str(run.path), out=tmp_path, shown=10)
    table = (tmp_path / "audit.csv").read_text()
    assert "flute horn violin piano" in table
    assert table.count("\n") == len(ROWS) + 1
