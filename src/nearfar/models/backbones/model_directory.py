"""The directory of a transformers model: find or download it, and read its configuration and weights without pickle."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError, install_hint
from nearfar.formatting import counted

# Files that a model needs. Weights in other formats, which can be several times as large, are not downloaded.
PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "1_Pooling/*.json")
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "pytorch_model.pt")


def import_library(library: str, solution: str) -> Any:
    """Import and return an optional library, or raise a NearfarError that says how to install it."""
    try:
        return importlib.import_module(library)
    except (ImportError, RuntimeError, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise NearfarError(f"{library} cannot be imported ({reason}): {solution}") from error


def import_transformers() -> Any:
    """Import and return the transformers library, or raise a NearfarError that says how to install it."""
    return import_library("transformers", install_hint("hub"))


def find_directory(name: str, *, download: bool = False) -> Path:
    """Return the directory of a model: `name` itself, or its copy in the cache of huggingface_hub.

    Args:
        name: A directory, or the name of a model on the Hugging Face Hub.
        download: If True, the model is downloaded if it is not in the cache.

    Raises:
        NearfarError: If there is no such model, or if it cannot be downloaded.
    """
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.is_dir():
        raise NearfarError(f"{name} is not the directory of a transformers model: config.json is missing")
    hub = import_library("huggingface_hub", install_hint("hub"))
    try:
        return Path(hub.snapshot_download(name, allow_patterns=list(PATTERNS), local_files_only=not download))
    except Exception as error:  # huggingface_hub raises many types of exception, also for an invalid name
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if download:
            raise NearfarError(f"{name} cannot be downloaded ({reason})") from None
        raise NearfarError(
            f"there is no model {name!r} on this machine, and nearfar downloads nothing unless told to: add --download "
            "(or download=True), or pass the directory of a model saved by save_pretrained"
        ) from None


def check_weights(folder: Path, name: str) -> None:
    """Raise a NearfarError if a model directory has no safetensors weights. Pickle files are never read."""
    if any(folder.glob("*.safetensors")):
        return
    pickled = next((file for file in PICKLED if (folder / file).is_file()), None)
    if pickled is None:
        raise NearfarError(f"{name} has no weights in the safetensors format: save the model with save_pretrained")
    raise NearfarError(
        f"{name} needs weights in the safetensors format, but only has pickled weights ({pickled}), which can run code "
        "when they are read. If you trust the source, convert it: python "
        f"-c \"from transformers import AutoModel; AutoModel.from_pretrained('{name}').save_pretrained('NEW')\" and "
        "copy the tokenizer and preprocessor files to NEW"
    )


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of a JSON file of a model directory, or an empty dict if there is no such file."""
    path = folder / name
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise NearfarError(f"{path} cannot be read as JSON ({error})") from None
    if not isinstance(content, dict):
        raise NearfarError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def load_model(folder: Path, name: str, *, pretrained: bool) -> tuple[Any, list[str]]:
    """Load a model with its weights, or with random weights.

    Returns:
        The model, and the names of the pooler's tensors that are missing from the weights.

    Raises:
        NearfarError: If the directory cannot be read, or if tensors other than those of a pooler are missing.
    """
    library = import_transformers()
    if pretrained:
        check_weights(folder, name)
    try:
        if not pretrained:
            config = library.AutoConfig.from_pretrained(folder, local_files_only=True)
            return library.AutoModel.from_config(config), []
        with _quiet(library):
            model, report = library.AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
    except Exception as error:  # a damaged directory can raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise NearfarError(f"{name} cannot be loaded as a transformers model ({reason})") from None
    missing = [str(part) for part in report["missing_keys"]]
    required = [part for part in missing if "pooler" not in part]
    if required:
        missing_tensors = f"{counted(len(required), 'tensor')} of the model, for example {required[0]}"
        raise NearfarError(f"the weights of {name!r} lack {missing_tensors}")
    return model, missing


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Hide the progress bar and the report of transformers while it loads weights."""
    logging = library.utils.logging
    verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()
