"""Miniatures of every layout, built in a temporary folder."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def make_image(seed: int = 0, size: tuple[int, int] = (12, 10), mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(seed)
    # smooth content, so that JPEG keeps it
    small = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8))
    return small.resize(size, Image.Resampling.BICUBIC).convert(mode)


def jpeg(seed: int = 0, size: tuple[int, int] = (12, 10), **options: object) -> bytes:
    buffer = io.BytesIO()
    make_image(seed, size).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def folder(root: Path, classes: dict[str, int], prefix: str = "") -> Path:
    for number, (name, count) in enumerate(classes.items()):
        for i in range(count):
            write(root / prefix / name / f"{i}.jpg", jpeg(100 * number + i))
    return root


def cub(root: Path, classes: int = 200, each: int = 2) -> Path:
    names = [f"{c + 1:03d}.Bird_{c}" for c in range(classes)]
    paths = [f"{name}/{i}.jpg" for name in names for i in range(each)]
    write(root / "classes.txt", "".join(f"{c + 1} {name}\n" for c, name in enumerate(names)))
    write(root / "images.txt", "".join(f"{i + 1} {path}\n" for i, path in enumerate(paths)))
    labels = "".join(f"{i + 1} {i // each + 1}\n" for i in range(len(paths)))
    write(root / "image_class_labels.txt", labels)
    for path in paths:
        write(root / "images" / path, b"x")
    return root


def tar(path: Path, members: dict[str, bytes], extra: list[tarfile.TarInfo] | None = None, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in extra or []:
            archive.addfile(info)
    return path
