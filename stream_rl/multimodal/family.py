"""What the rest needs to know about a family of models that see: one small class each, found by `model_type`.

Another family is another class with the members of `Family`, added to FAMILIES; how its forward pass takes images
stands in the trainer's `vision.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from stream_rl.errors import ImageError, ModelError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

__all__ = ["FAMILIES", "Family", "QwenVL", "load_family"]

Int64 = NDArray[np.int64]


class Family(Protocol):
    """One model's way to take images.

    placeholder  the id that stands for one feature of an image
    forbidden    ids that the model must not write: an engine or a trainer would take them for images
    axes         of positions
    """

    placeholder: int
    forbidden: tuple[int, ...]
    axes: int

    def tokens_of(self, height: int, width: int) -> int:
        """Features of an image of this size in pixels, without a look at it. Raises ImageError if it is refused."""

    def pixels(self, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        """What the model's own processor makes of images in RGB: tensors by name, joined over the images on axis 0."""

    def features_of(self, pixels: Mapping[str, Tensor]) -> list[int]:
        """Of such tensors, the features that each image has."""

    def positions(self, length: int, starts: Sequence[int], pixels: Sequence[Mapping[str, Tensor]]) -> Int64:
        """Positions of a sample's tokens along the axes of the model's position encoding, int64 (axes, length).

        Args:
            length: of the sample, in tokens.
            starts: where each image's tokens begin, in order.
            pixels: each image's.
        """


class QwenVL:
    """Qwen2-VL, Qwen2.5-VL and Qwen3-VL: patches are merged by squares, positions have three axes.

    Args:
        processor: the model's own (transformers' AutoProcessor).
        config: the model's.
    """

    axes = 3
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")

    def __init__(self, processor: Any, config: Any) -> None:
        self._images = processor.image_processor
        self._side: int = self._images.merge_size
        self._merged: int = self._side**2
        self.placeholder: int = config.image_token_id
        # The engines find the images of Qwen2.5-VL by their opening token, and look behind it.
        opening = () if config.model_type.startswith("qwen3") else (config.vision_start_token_id,)
        self.forbidden: tuple[int, ...] = (config.image_token_id, config.video_token_id, *opening)

    def tokens_of(self, height: int, width: int) -> int:
        """See Family: sides are rounded to whole squares of patches, and none may be 200 times the other."""
        try:
            patches: int = self._images.get_number_of_image_patches(height, width, {})
        except ValueError as error:
            raise ImageError(f"the model's processor refuses an image of {width}x{height} pixels: {error}") from error
        return patches // self._merged

    def pixels(self, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        """`pixel_values` float32 (patches, values) and `image_grid_thw` int64 (n, 3) of n images in RGB."""
        made = self._images(images=list(images), return_tensors="pt")
        return {"pixel_values": made["pixel_values"], "image_grid_thw": made["image_grid_thw"]}

    def features_of(self, pixels: Mapping[str, Tensor]) -> list[int]:
        """See Family."""
        return [int(patches) // self._merged for patches in pixels["image_grid_thw"].prod(dim=1)]

    def positions(self, length: int, starts: Sequence[int], pixels: Sequence[Mapping[str, Tensor]]) -> Int64:
        """See Family: time, height and width. Text counts on along all three, from the end of the longest image side.

        As Qwen2-VL's report has it: an image stands still in time, and its rows and columns are its height and width.
        """
        positions = np.empty((3, length), np.int64)
        at = position = 0
        for start, one in zip(starts, pixels, strict=True):
            time, rows, columns = (int(side) for side in one["image_grid_thw"][0])
            grid = np.indices((time, rows // self._side, columns // self._side)).reshape(3, -1)
            positions[:, at:start] = np.arange(position, position + start - at)
            position += start - at
            at = start + grid.shape[1]
            positions[:, start:at] = grid + position
            position += max(rows, columns) // self._side
        positions[:, at:] = np.arange(position, position + length - at)
        return positions


FAMILIES = (QwenVL,)


def load_family(path: str) -> Family | None:
    """The family of the model at `path`, with its processor; None for a model that reads text only.

    Raises:
        ModelError: the model sees, but is of no family known here, or its processor does not load.
    """
    from transformers import AutoConfig, AutoProcessor  # noqa: PLC0415 - seconds to import: only who needs it pays

    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError):  # a tokenizer alone, as for tests, sees nothing
        return None
    if getattr(config, "vision_config", None) is None:
        return None
    for family in FAMILIES:
        if config.model_type in family.model_types:
            try:
                return family(AutoProcessor.from_pretrained(path), config)  # type: ignore[no-untyped-call]
            except (OSError, ValueError, AttributeError) as error:
                reason = str(error).partition("\n")[0]
                raise ModelError(f"model.path={path!r} has no processor that loads: {reason}") from error
    known = ", ".join(name for family in FAMILIES for name in family.model_types)
    raise ModelError(
        f"model.path={path!r} is a {config.model_type}, which sees in a way that is not known here (known: {known}); "
        "stream_rl/multimodal/family.py says what to add"
    )
