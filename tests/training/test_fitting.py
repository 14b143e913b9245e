"""`nearfar.fit` from your own network and dataset to scores, search, export and reload."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import nearfar
from nearfar.errors import NearfarError
from nearfar.models.backbones import BACKBONES
from nearfar.runs import Run
from nearfar.search.export_model import export_onnx
from nearfar.training.fitting import configure, expand_settings
from own_parts import BarImages, Bars, Net, make_net

QUIET = {"say": lambda _: None, "progress": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("runs") / "bars"
    return nearfar.fit(Net(), Bars(), out=out, steps=40, batch_size=12, lr=1e-2, **QUIET)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    BACKBONES.names()
    monkeypatch.setattr(BACKBONES, "_entries", dict(BACKBONES._entries))
    return iter(())


def test_training_improves_the_scores(run: Run) -> None:
    results = run.results()
    assert results["test"]["map@r"] > results["untrained"]["map@r"]
    assert run.evaluate(say=lambda _: None)["map@r"] == pytest.approx(results["test"]["map@r"])
    assert run.config.model.head == "identity"
    assert run.config.data.source == "python:Bars"


def test_encode_index_search_and_export(run: Run, tmp_path: Path) -> None:
    model, bars = nearfar.load(run), Bars()
    queries = torch.stack([bars[i][0] for i in range(3)])
    vectors = model.encode(queries, batch_size=2)
    assert vectors.shape == (3, 16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    index = nearfar.search.Index.build(run, bars)
    assert index.search(vectors, 1)[1][:, 0].tolist() == [0, 1, 2]
    _, difference = export_onnx(model, tmp_path)
    assert difference < 1e-4


def test_reload_needs_the_network_or_its_registration(run: Run, registry: None, tmp_path: Path) -> None:
    saved = run.save_pretrained(tmp_path / "model", license="mit")
    x = torch.rand(2, 1, 24, 24)
    expected = nearfar.load(run).encode(x)
    for source in (saved, run.path):
        with pytest.raises(NearfarError, match=r"its network is your own code, own_parts:Net.*--import own_parts"):
            nearfar.load(source)
        np.testing.assert_array_equal(nearfar.load(source, model=Net()).encode(x), expected)
    nearfar.models.register("own_parts:Net", Net)
    np.testing.assert_array_equal(nearfar.load(saved).encode(x), expected)
    assert json.loads((saved / "config.json").read_bytes())["library_name"] == "nearfar"


def test_parameters_that_the_user_froze_stay_frozen(tmp_path: Path) -> None:
    network = Net()
    frozen = next(network.parameters()).requires_grad_(False)
    before = frozen.clone()
    nearfar.fit(network, Bars(), out=tmp_path, steps=2, batch_size=12, **QUIET)
    assert frozen.grad is None
    assert not frozen.requires_grad
    assert torch.equal(frozen, before)


def test_the_data_of_a_run_is_not_on_disk(run: Run) -> None:
    with pytest.raises(NearfarError, match="python:Bars is a placeholder for data that was passed as a Python object"):
        Run(run.path, network=Net()).manifest()
    assert len(Run(run.path, network=Net()).manifest(Bars())) == len(Bars())


def test_an_embedder_continues_from_its_weights(run: Run, tmp_path: Path) -> None:
    embedder = run.embedder()
    again = nearfar.fit(embedder, Bars(), out=tmp_path / "more", steps=1, lr=1e-12, **QUIET)
    x = torch.rand(2, 1, 24, 24)
    torch.testing.assert_close(again.embedder()(x), run.embedder()(x), rtol=1e-4, atol=1e-5)


def test_images_of_a_dataset_with_a_registered_network(registry: None, tmp_path: Path) -> None:
    nearfar.models.register("mine", make_net)
    run = nearfar.fit("mine", BarImages(), recipe="supcon", out=tmp_path / "run", steps=3, size=24, dim=8, **QUIET)
    model, image = nearfar.load(run), BarImages()[4]["image"]
    assert isinstance(image, Image.Image)
    image.save(tmp_path / "query.png")
    single = model.encode(tmp_path / "query.png")
    assert single.shape == (8,)
    np.testing.assert_allclose(model.encode([image, np.asarray(image)]), np.stack([single, single]), atol=1e-5)
    assert nearfar.load(run.save_pretrained(tmp_path / "saved")).encode([image]).shape == (1, 8)


def test_the_best_epoch_is_loaded_into_a_copy_of_the_network(tmp_path: Path) -> None:
    data = {"train": Bars(), "val": Bars(), "test": Bars()}
    run = nearfar.fit(Net(), data, out=tmp_path / "run", epochs=2, **{"select.by": "validation"}, **QUIET)
    assert run.results()["selected_by"] == "validation"
    assert run.embedder()(torch.rand(1, 1, 24, 24)).shape == (1, 16)


class WithTransform(nn.Module):
    """A network that prepares its images itself."""

    input_size = 8

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 8 * 8, 6)

    def transform(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(image.resize((8, 8)), np.float32)).permute(2, 0, 1) / 10

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x.flatten(1))
        return y


def test_the_transform_of_a_network_replaces_all_preprocessing(tmp_path: Path) -> None:
    run = nearfar.fit(WithTransform(), BarImages(), out=tmp_path / "run", steps=2, **QUIET)
    model, image = nearfar.load(run), BarImages()[7]["image"]
    assert isinstance(image, Image.Image)
    expected = run.embedder()(WithTransform().transform(image)[None]).detach().numpy()
    np.testing.assert_allclose(model.encode([image], normalize=False), expected, rtol=1e-5)


def test_settings_of_every_form() -> None:
    tree = expand_settings({"lr": 0.1, "batches.size": 4, "loss": {"alpha": 2}, "epochs": 1})
    assert tree == {"optimizer": {"lr": 0.1}, "batches": {"size": 4}, "loss": {"alpha": 2}, "epochs": 1}
    config, manifest, network = configure(Net(), Bars(), epochs=3, lr=0.5)
    assert (config.epochs, config.steps, config.optimizer.lr, config.recipe) == (3, None, 0.5, "proxy-anchor")
    assert manifest.kind == "tensors"
    assert isinstance(network, nn.Module)
    assert configure(None, Bars(), loss={"name": "supcon"})[0].recipe is None


@pytest.mark.parametrize(
    ("model", "data", "settings", "message"),
    [
        (3, Bars(), {}, "model must be the name of a backbone"),
        (Net(), 3, {}, "data must be a path"),
        (Net(), Bars(), {"learning_rat": 1}, "has no 'learning_rat'"),
        (Net(), BarImages(), {}, "has 1 input channel, but the data has 3"),
    ],
)
def test_errors_are_one_line(model: object, data: object, settings: dict[str, object], message: str) -> None:
    with pytest.raises(NearfarError, match=message) as caught:
        nearfar.fit(model, data, **settings)
    assert "\n" not in str(caught.value)
