"""Pixel values on disk, a file an image, for all ranks of a run and for its later starts; bounded in bytes.

    put: write beside ─► rename ─► after each sixteenth of the limit: remove what was used longest ago

Invariants: a file appears under its name by one rename; what a rank removes, another makes again; after a look at most
15/16 of the limit are there, so that R ranks never hold more than the limit and (R - 1)/16 of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stream_rl.errors import TrainingError

__all__ = ["PixelFiles", "Pixels"]

Pixels = Mapping[str, Tensor]
"""One image's tensors, by the names that the model's forward pass knows; each is joined over images on axis 0."""

LOOKS = 16
"""A rank looks at the folder each time it has written one part in so many of the limit."""


class PixelFiles:
    """A folder of pixel values, which any number of ranks may share.

    Args:
        folder: made if it is not there.
        limit: of the folder, in bytes.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._written = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._remove_oldest()  # an earlier start may have had another limit

    def get(self, name: str) -> Pixels | None:
        """An image's pixels, which are used by this; None where they are not there."""
        path = self._path(name)
        try:
            pixels = load_file(path)
            os.utime(path)
        except (OSError, SafetensorError):  # not there, or a torn file of a machine that lost power: made again
            return None
        return pixels

    def put(self, name: str, pixels: Pixels) -> None:
        """Keeps an image's pixels. Raises TrainingError when they cannot be written."""
        partial = self._folder / f".{name}.{os.getpid()}"
        try:
            save_file(dict(pixels), partial)
        except (OSError, SafetensorError) as error:
            free = shutil.disk_usage(self._folder).free >> 20
            raise TrainingError(
                f"pixels could not be written to {self._folder}, where {free} MiB are free: set multimodal.store to "
                f"recompute, or multimodal.store_mib to what there is room for ({error})"
            ) from error
        self._written += sum(tensor.nbytes for tensor in pixels.values())
        with contextlib.suppress(FileNotFoundError):  # another rank took it for one too many
            partial.rename(self._path(name))
        if self._written * LOOKS >= self._limit:
            self._remove_oldest()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"

    def _remove_oldest(self) -> None:
        self._written = 0
        found = []
        for path in self._folder.iterdir():  # those that a killed rank left half written, too
            with contextlib.suppress(FileNotFoundError):  # another rank has removed it
                about = path.stat()
                found.append((about.st_mtime_ns, about.st_size, path))
        size = sum(size for _, size, _ in found)
        for _, of_file, path in sorted(found):
            if size * LOOKS <= self._limit * (LOOKS - 1):
                return
            path.unlink(missing_ok=True)
            size -= of_file
