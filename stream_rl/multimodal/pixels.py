"""What a model's processor makes of images, kept by the images' names: each distinct image is processed once.

    names ─► in memory ─► in the run's `pixels/` (multimodal.store=disk) ─► made of the image's bytes

Memory and folder are bounded, and what was used longest ago is given up. Pixel values cost some ten times the image's
bytes, so they are never in the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stream_rl.config import MultimodalConfig
from stream_rl.errors import ImageError
from stream_rl.multimodal.family import Family
from stream_rl.multimodal.pixel_files import PixelFiles, Pixels
from stream_rl.multimodal.reading import rgb
from stream_rl.multimodal.recent import Recent

__all__ = ["Load", "Processed", "merged"]

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
        self._files = PixelFiles(folder, settings.store_mib * 2**20) if settings.store == "disk" else None
        self._kept: Recent[str, Pixels] = Recent(settings.trainer_cache_mib * 2**20, _bytes)

    def of(self, names: Sequence[str], load: Load) -> dict[str, Pixels]:
        """The pixels of each name; `load` is asked once, for the images that are nowhere else.

        Raises:
            ImageError: an image's bytes are none that the model's processor takes.
            TrainingError: pixels cannot be written.
        """
        wanted = dict.fromkeys(names)
        found = {name: pixels for name in wanted if (pixels := self._known(name)) is not None}
        if new := [name for name in wanted if name not in found]:
            for name, data in load(new).items():
                found[name] = self._process(name, data)
                if self._files is not None:
                    self._files.put(name, found[name])
        for name, pixels in found.items():
            self._kept.keep(name, pixels)
        return found

    def _known(self, name: str) -> Pixels | None:
        if (pixels := self._kept.get(name)) is not None or self._files is None:
            return pixels
        return self._files.get(name)

    def _process(self, name: str, data: bytes) -> Pixels:
        try:
            return self.family.pixels([rgb(data)])
        except Exception as error:  # readers of damaged files raise anything
            raise ImageError(f"image {name} cannot be processed: {error or type(error).__name__}") from error


def merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Images' tensors as those of all of them, in order: one `torch.cat` for each name.

    Raises:
        ImageError: an image lacks a name that another has, has a value under it that is no tensor, or one of another
            dtype or shape behind the first axis.
    """
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _joined(name, [part.get(name) for part in parts]) for name in names}


def _joined(name: str, values: Sequence[Any]) -> Tensor:
    first = values[0]
    for number, value in enumerate(values):
        if not isinstance(value, Tensor) or not value.dim():
            what = "a single number" if isinstance(value, Tensor) else type(value).__name__
            raise ImageError(f"image {number} has {what} under {name!r}: not to be merged")
        if (value.dtype, value.shape[1:]) != (first.dtype, first.shape[1:]):
            both = f"{_form(value)} under {name!r} where image 0 has {_form(first)}"
            raise ImageError(f"image {number} has {both}: not to be merged")
    return torch.cat(list(values))


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _bytes(pixels: Pixels) -> int:
    return sum(tensor.nbytes for tensor in pixels.values())
