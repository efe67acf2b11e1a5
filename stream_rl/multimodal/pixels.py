"""What a model's processor makes of images, kept by the images' names: each distinct image is processed once.

    names ─► in memory ─► in the run's `pixels/` (multimodal.store=disk) ─► made of the image's bytes

Memory is bounded, and what was used longest ago is given up. Pixel values cost some ten times the image's bytes, so
they are never in the buffer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stream_rl.config import MultimodalConfig
from stream_rl.errors import ImageError
from stream_rl.multimodal.family import Family
from stream_rl.multimodal.reading import rgb
from stream_rl.multimodal.recent import Recent

__all__ = ["Load", "Pixels", "Processed", "merged"]

Pixels = Mapping[str, Tensor]
"""One image's tensors, by the names that the model's forward pass knows; each is joined over images on axis 0."""
Load = Callable[[Sequence[str]], Mapping[str, bytes]]


class Processed:
    """The processed images of one trainer rank.

    Args:
        family: the model's.
        settings: how much is kept, and where.
        folder: the run's `pixels/`; any number of ranks may share it.
    """

    def __init__(self, family: Family, settings: MultimodalConfig, folder: Path) -> None:
        self.family = family
        self._folder = folder if settings.store == "disk" else None
        self._kept: Recent[str, Pixels] = Recent(settings.trainer_cache_mib * 2**20, _bytes)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    def of(self, names: Sequence[str], load: Load) -> dict[str, Pixels]:
        """The pixels of each name; `load` is asked once, for the images that are nowhere else.

        Raises:
            ImageError: an image's bytes are none that the model's processor takes.
        """
        wanted = dict.fromkeys(names)
        found = {name: pixels for name in wanted if (pixels := self._known(name)) is not None}
        if new := [name for name in wanted if name not in found]:
            for name, data in load(new).items():
                found[name] = self._process(name, data)
                self._write(name, found[name])
        for name, pixels in found.items():
            self._kept.keep(name, pixels)
        return found

    def _known(self, name: str) -> Pixels | None:
        if (pixels := self._kept.get(name)) is not None or self._folder is None:
            return pixels
        try:
            return load_file(self._folder / f"{name}.safetensors")
        except (OSError, SafetensorError):  # not there, or a torn file of a machine that lost power: made again
            return None

    def _process(self, name: str, data: bytes) -> Pixels:
        try:
            return self.family.pixels([rgb(data)])
        except (OSError, SyntaxError, ValueError) as error:
            raise ImageError(f"image {name} cannot be processed: {error}") from error

    def _write(self, name: str, pixels: Pixels) -> None:
        if self._folder is not None:
            partial = self._folder / f".{name}.{os.getpid()}"
            save_file(dict(pixels), partial)
            partial.rename(self._folder / f"{name}.safetensors")


def merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Images' tensors as those of all of them, in order: one `torch.cat` for each name.

    Raises:
        ImageError: an image lacks a name that another has, or has a value under it that is no tensor.
    """
    names = dict.fromkeys(name for part in parts for name in part)
    for name in names:
        for number, part in enumerate(parts):
            if not isinstance(part.get(name), Tensor):
                raise ImageError(f"image {number} has {type(part.get(name)).__name__} under {name!r}: not to be merged")
    return {name: torch.cat([part[name] for part in parts]) for name in names}


def _bytes(pixels: Pixels) -> int:
    return sum(tensor.nbytes for tensor in pixels.values())
