"""Training on texts: a small BERT from a configuration, through the command's configuration, with every sampler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nearfar.cli.train_command import configure
from nearfar.config.merge import resolve
from nearfar.errors import NearfarError
from nearfar.models import create_embedder
from nearfar.runs import Run
from nearfar.search import Encoder
from nearfar.training.evaluate import default_batch_size
from nearfar.training.fitting import fit
from nearfar.training.launch import train
from nearfar.training.start_scores import FeaturesAndEmbeddings
from text_cases import save_bert, sentences, write_csv

SMALL = ("model.pretrained=true", "epochs=null", "steps=4", "batches.size=12", "device=cpu", "optimizer.lr=0.001")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    save_bert(folder / "bert")
    write_csv(folder / "t.csv", sentences(12))
    return folder


def run(folder: Path, out: Path, recipe: str, *settings: str) -> Run:
    settings = (*SMALL, f"model.backbone=transformers:{folder / 'bert'}", *settings)
    config, manifest = configure(str(folder / "t.csv"), recipe=recipe, file=None, settings=settings)
    return train(config, out, manifest=manifest, say=lambda _: None)


def weights(run: Run) -> dict[str, Any]:
    return run.embedder().state_dict()


@pytest.mark.parametrize(
    "recipe",
    [
        *("proxy-anchor", "mpa", "mpa-dw", "mpa-ap", "proxy-isa", "dro-topk", "dro-kl-g", "bspml"),
        *("m-profs", "m-profs-hncm", "t-profs", "t-profs-hncm"),
    ],
)
def test_every_method_trains_on_texts(folder: Path, tmp_path: Path, recipe: str) -> None:
    classes = () if "profs" not in recipe else ("batches.classes=3", "batches.per_class=2", "batches.size=null")
    finished = run(folder, tmp_path / "run", recipe, *classes)
    scores = finished.results()
    assert 0 < scores["test"]["map@r"] <= 1
    assert "untrained" in scores
    assert "raw" not in scores  # the embedding is that of the network, without a head
    assert dict(finished.evaluate(say=lambda _: None)) == pytest.approx(scores["test"], abs=1e-6)


def test_parts_of_a_batch_give_the_weights_of_the_whole_batch(folder: Path, tmp_path: Path) -> None:
    """Dropout draws by position, so it is turned off."""
    save_bert(tmp_path / "plain", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    backbone = f"model.backbone=transformers:{tmp_path / 'plain'}"
    whole = run(folder, tmp_path / "whole", "supcon", backbone, "optimizer.name=sgd")
    parts = run(folder, tmp_path / "parts", "supcon", backbone, "optimizer.name=sgd", "micro_batch=4")
    for name, value in weights(whole).items():
        torch.testing.assert_close(value, weights(parts)[name], rtol=1e-4, atol=1e-6)


def test_a_resumed_run_ends_with_the_same_weights(folder: Path, tmp_path: Path) -> None:
    settings = (*SMALL, f"model.backbone=transformers:{folder / 'bert'}", "save_every=0")
    config, manifest = configure(str(folder / "t.csv"), recipe="proxy-anchor", file=None, settings=settings)
    whole = train(config, tmp_path / "whole", manifest=manifest, say=lambda _: None)
    train(config, tmp_path / "cut", manifest=manifest, say=lambda _: None, stop_after=3)
    resumed = train(config, tmp_path / "cut", manifest=manifest, say=lambda _: None, resume=True)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name


def test_a_centered_run_subtracts_the_mean_of_the_training_texts(folder: Path, tmp_path: Path) -> None:
    finished = run(folder, tmp_path / "run", "proxy-anchor", "model.center=true", "model.token_dropout=0.2")
    plain = run(folder, tmp_path / "plain", "proxy-anchor", "model.center=false", "model.token_dropout=0.2")
    center = finished.embedder().center
    assert center is not None
    assert plain.embedder().center is None
    trained = {name: value for name, value in weights(finished).items() if name != "center.mean"}
    for name, value in weights(plain).items():
        assert torch.equal(value, trained[name]), name
    encoder, uncentered = Encoder(finished), Encoder(plain)
    _, manifest = configure(str(folder / "t.csv"), recipe="proxy-anchor", file=None, settings=SMALL)
    train_texts = [manifest.texts[i] for i in manifest.rows("train")]
    mean = torch.nn.functional.normalize(torch.as_tensor(uncentered.embed_texts(train_texts))).mean(0)
    torch.testing.assert_close(center.mean, mean, rtol=1e-4, atol=1e-5)
    assert encoder.embed_texts(["apple"]).shape == uncentered.embed_texts(["apple"]).shape
    assert dict(finished.evaluate(say=lambda _: None)) == pytest.approx(finished.results()["test"], abs=1e-6)


def test_token_dropout_needs_texts(tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match=r"token_dropout=0\.2 needs a network for texts"):
        fit(
            None, ([[0.0, 1.0], [1.0, 0.0]] * 4, [0, 1, 2, 3] * 2), out=tmp_path / "run", **{"model.token_dropout": 0.2}
        )


def test_texts_are_embedded_in_large_batches(folder: Path) -> None:
    embedder = create_embedder(f"transformers:{folder / 'bert'}", head="identity", pretrained=True, input_size=32)
    assert embedder.input_size == 32  # a limit in tokens, not the side of an image
    assert default_batch_size(embedder) == default_batch_size(FeaturesAndEmbeddings(embedder)) == 256


def test_few_texts_have_more_epochs() -> None:
    found = [resolve("text", samples=n, recipe="proxy-anchor").epochs for n in (None, 11_250, 5_000, 999, 16)]
    assert found == [1, 1, 2, 11, 20]
    assert resolve("text", samples=16, recipe="proxy-anchor", settings=["epochs=1"]).epochs == 1


def test_a_chosen_dimension_adds_a_head(folder: Path, tmp_path: Path) -> None:
    default = resolve("text", recipe="proxy-anchor").model
    assert (default.head, default.dim) == ("identity", None)
    chosen = resolve("text", recipe="proxy-anchor", settings=["model.dim=8"]).model
    assert (chosen.head, chosen.dim, chosen.init) == ("linear", 8, "pca")
    finished = run(folder, tmp_path / "run", "proxy-anchor", "model.dim=8")
    assert finished.embedder().dim == 8
    assert "raw" in finished.results()


def test_texts_that_are_cut_are_counted(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    settings = (*SMALL, f"model.backbone=transformers:{folder / 'bert'}", "model.max_tokens=5")
    config, manifest = configure(str(folder / "t.csv"), recipe="supcon", file=None, settings=settings)
    train(config, tmp_path / "run", manifest=manifest, say=said.append)
    # the texts of three and four words, with [CLS] and [SEP]
    assert "18 of 36 texts reach the limit of 5 tokens and may be truncated (model.max_tokens)" in said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("model.backbone=efficientnet-lite0", "model.pretrained=false"), "does not fit the data t.csv"),
        (("model.max_tokens=99",), "max_tokens must be at least 2 and at most 32"),
        (("model.backbone=transformers:nobody/nothing",), "no model 'nobody/nothing' on this machine"),
        (("model.pooling=gem",), "pooling must be one of"),
        (("model.train_from=layers.1", "cache.activations=cache"), "cache.activations needs images"),
    ],
)
def test_settings_that_do_not_fit_texts_are_refused(
    folder: Path, tmp_path: Path, settings: tuple[str, ...], message: str
) -> None:
    with pytest.raises(NearfarError, match=message):
        run(folder, tmp_path / "run", "proxy-anchor", *settings)
