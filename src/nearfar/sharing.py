"""Share a model: write it to a directory, upload it to the Hugging Face Hub, and load it from there."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from nearfar import __version__
from nearfar.calibration import CALIBRATION_FILE, load_calibration
from nearfar.data.pixels import are_drawings
from nearfar.errors import NearfarError, install_hint
from nearfar.files import atomic, expand_user
from nearfar.model import Model
from nearfar.model_card import front_matter, model_card
from nearfar.model_kinds import SAVED_FILE, open_model
from nearfar.models import names
from nearfar.training.embedder_file import save_embedder

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
FILES = (SAVED_FILE, "model.safetensors", "preprocessor_config.json", "README.md")


def save_pretrained(model: Model, folder: str | Path, *, license: str | None = None) -> Path:
    """Write config.json, model.safetensors, preprocessor_config.json and README.md (a model card) to a folder.

    If the model is calibrated, calibration.json is written too.

    `nearfar.load(folder)` loads the model again. No file is pickled.

    Args:
        model: The model: a training run, a saved model or a backbone.
        folder: The folder, which is created if necessary. Existing files with these names are replaced.
        license: License of the model, such as "mit", for the front matter of the card.

    Returns:
        The folder.
    """
    path = Path(folder)
    embedder, config = model.embedder(), model.config
    backbone = embedder.backbone
    inputs = "images" if backbone.has_image_input else "texts" if backbone.has_text_input else "vectors"
    arrays = model.array_data() if inputs == "images" else None
    description: dict[str, Any] = {
        "library_name": "nearfar",
        "nearfar": __version__,
        "inputs": inputs,
        "dim": embedder.dim,
        "embedder": embedder.config | {"pretrained": False},
        "model": config.to_dict()["model"] | {"pretrained": False},
        "images": config.to_dict()["images"],
    }
    if arrays is not None and arrays.pixels is not None:
        description["arrays"] = {"shape": list(arrays.pixels.shape[1:]), "drawings": are_drawings(arrays.pixels)}
    _write_json(path / SAVED_FILE, description)
    _write_json(path / "preprocessor_config.json", _describe_preprocessing(model))
    save_embedder(embedder, path / "model.safetensors")
    calibration = load_calibration(model, embedder)
    if calibration is not None:
        calibration.save(path / CALIBRATION_FILE)
    card = f"{front_matter(model, license=license)}\n{model_card(model, embedder, _usage(inputs))}"
    with atomic(path / "README.md") as draft:
        draft.write_text(card, encoding="utf-8", errors="replace")
    return path


def push_to_hub(
    model: Model,
    repo_id: str,
    *,
    token: str | None = None,
    private: bool = False,
    license: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Upload a model to the Hugging Face Hub and return its address.

    A new repository is public unless `private` is True.

    Args:
        model: The model: a training run, a saved model or a backbone.
        repo_id: The id USER/NAME of the repository, which is created if necessary.
        token: A token with write access. The default is the one saved by `hf auth login`.
        private: Whether a new repository is private.
        license: See `save_pretrained`.
        endpoint: Address of the Hub. The default is that of huggingface_hub.

    Raises:
        NearfarError: If huggingface_hub is not installed, or if the upload fails.
    """
    hub = _import_hub("uploading a model")
    if not HUB_ID.fullmatch(repo_id):
        raise NearfarError(f"repo_id must have the form USER/NAME, got {repo_id!r}")
    api = hub.HfApi(endpoint=endpoint, token=token)
    with TemporaryDirectory() as folder:
        save_pretrained(model, folder, license=license)
        try:
            api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo_id, folder_path=folder, commit_message=f"Add a model saved with nearfar {__version__}"
            )
        except Exception as error:  # huggingface_hub and its HTTP library raise many types of exception
            raise NearfarError(f"{repo_id}: cannot be uploaded ({_first_line(error)})") from error
    return f"{api.endpoint}/{repo_id}"


def find_model(
    source: Any, *, network: nn.Module | None = None, download: bool = False, endpoint: str | None = None
) -> Model:
    """Open a model of any kind (see `open_model`), or a model from the Hugging Face Hub, given its id USER/NAME.

    Args:
        source: An argument that `open_model` accepts, or the id USER/NAME of a model on the Hub.
        network: Your own network, needed for a run or saved model whose network cannot be created from a name.
        download: Whether the model may be downloaded from the Hub. If False, it must be in the local cache of the Hub.
        endpoint: Address of the Hub. The default is that of huggingface_hub.
    """
    is_id = isinstance(source, str) and HUB_ID.fullmatch(source) and source not in names()
    if not is_id or expand_user(str(source)).exists():
        return open_model(source, network=network)
    hub = _import_hub(f"{source}: there is no such directory, and loading a model from the Hugging Face Hub")
    try:
        folder = hub.snapshot_download(
            source, local_files_only=not download, allow_patterns=[*FILES, CALIBRATION_FILE], endpoint=endpoint
        )
    except Exception as error:  # huggingface_hub and its HTTP library raise many types of exception
        place = "cannot be loaded from the Hugging Face Hub" if download else "is not in the local cache of the Hub"
        remedy = "" if download else ": pass download=True to download it, or the path of a directory"
        raise NearfarError(
            f"{source}: there is no such directory, and the model {place} ({_first_line(error)}){remedy}"
        ) from error
    return open_model(folder, network=network)


def _describe_preprocessing(model: Model) -> dict[str, Any]:
    """Return a description of the preprocessing in the format of the image processors of transformers."""
    embedder, images = model.embedder(), model.config.images
    if not embedder.takes_pixels:
        return {"do_normalize": False, "do_resize": False}
    side = embedder.input_size
    return {
        "do_resize": True,
        "size": {"shortest_edge": images.resize or round(side * 256 / 224)},
        "resample": 2,
        "do_center_crop": True,
        "crop_size": {"height": side, "width": side},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(embedder.mean),
        "image_std": list(embedder.std),
        "do_convert_rgb": embedder.channels == 3,
    }


def _usage(inputs: str) -> str:
    example = {"images": '["photo.jpg"]', "texts": '["a text"]'}.get(inputs, "vectors")
    return f"""```python
import nearfar

model = nearfar.load("FOLDER_OR_HUB_ID")
embeddings = model.encode({example})     # unit vectors, so dot products are cosines
```

`model.safetensors` contains the weights. `config.json` contains the architecture and the preprocessing. Nothing is
pickled."""


def _write_json(path: Path, tree: dict[str, Any]) -> None:
    with atomic(path) as draft:
        draft.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")


def _import_hub(purpose: str) -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise NearfarError(f"{purpose} needs huggingface_hub: {install_hint('hub')}") from None


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
