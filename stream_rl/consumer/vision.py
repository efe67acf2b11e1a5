"""Images in the trainer: which of a pass's tokens show which image, and how the model takes them.

    samples ─► Shown: images by name, their places, positions ─► micro-batch: its distinct images, and their order
                                                                                            │
        language model ◄─ features in the places of placeholders ◄─ each distinct image once ◄──┘

Every pass of every rank runs the vision tower, on a blank image where none is shown, with a share of zero in what comes
out: its collectives are the same on all ranks. Invariant I9 is checked where images and tokens meet, before any pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from stream_rl.errors import ImageMismatch
from stream_rl.multimodal.family import Family
from stream_rl.multimodal.pixel_files import Pixels
from stream_rl.multimodal.pixels import merged
from stream_rl.sample import Sample

__all__ = ["NOT_SHOWN", "ImageBatch", "Shown", "Sight", "shown_by"]

Ints = NDArray[np.int64]

BLANK_SIDE = 64
NOT_SHOWN = 0
"""The id that the model reads where the id of a placeholder stands for no image: the last of a sample, always."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a model that sees needs of n samples besides their tokens; flat, t tokens and m images.

    inputs     int64 (t,)        the tokens as the model reads them: placeholders where features go, nowhere else
    positions  int64 (axes, t)   from 0 in every sample
    owners     int64 (m,)        the sample that shows the image, ascending
    names      of the m images
    pixels     of each name
    """

    inputs: Ints
    positions: Ints
    owners: Ints
    names: tuple[str, ...]
    pixels: Mapping[str, Pixels]

    def batch(self, indices: Ints, source: Ints, at: Ints, shape: tuple[int, ...]) -> ImageBatch:
        """The part of a micro-batch.

        Args:
            indices: its samples, in the order of its sequences.
            source: int64 (u,), its tokens' places in these flat arrays.
            at: int64 (u,), their places in the flattened rows.
            shape: of the rows.
        """
        inputs, positions = np.zeros(shape, np.int64), np.zeros((len(self.positions), *shape), np.int64)
        inputs.flat[at] = self.inputs[source]
        positions.reshape(len(positions), -1)[:, at] = self.positions[:, source]
        firsts, ends = np.searchsorted(self.owners, indices), np.searchsorted(self.owners, indices, "right")
        images = [image for first, end in zip(firsts, ends, strict=True) for image in range(first, end)]
        distinct = list(dict.fromkeys(self.names[image] for image in images))
        number = {name: place for place, name in enumerate(distinct)}
        return ImageBatch(
            torch.from_numpy(inputs),
            torch.from_numpy(positions),
            tuple(number[self.names[image]] for image in images),
            merged([self.pixels[name] for name in distinct]),
        )


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """What a pass of a model that sees has besides a micro-batch's tokens.

    inputs     int64, shaped like the tokens
    positions  int64 (axes, *shape of the tokens)
    order      for each image that the tokens show, in order, which of `pixels` it is
    pixels     of the distinct images, joined
    """

    inputs: Tensor
    positions: Tensor
    order: tuple[int, ...]
    pixels: Pixels

    def to(self, device: torch.device) -> ImageBatch:
        """The same on another device."""
        pixels = {name: tensor.to(device) for name, tensor in self.pixels.items()}
        return ImageBatch(self.inputs.to(device), self.positions.to(device), self.order, pixels)


class Sight:
    """How a model takes the images of a micro-batch.

    Args:
        model: a transformers model whose base model has `get_image_features` and takes `mm_encoder_outputs`.
        family: the model's.
    """

    def __init__(self, model: PreTrainedModel, family: Family) -> None:
        self._model = model
        self.family = family
        self._blank = family.pixels([Image.new("RGB", (BLANK_SIDE, BLANK_SIDE))])

    def arguments(self, tokens: Tensor, positions: Tensor, images: ImageBatch | None) -> dict[str, Any]:
        """What the model is called with instead of tokens and positions (int64, of one shape).

        Raises:
            ImageMismatch: tokens that stand for images, without `images`: the model would not see what was shown.
        """
        base: Any = self._model.base_model
        if images is not None and images.order:
            features = base.get_image_features(**images.pixels, return_dict=True)
            placed = {"input_ids": images.inputs, "mm_encoder_outputs": {"image": _in_order(features, images.order)}}
            return {**placed, "position_ids": _along(images.positions)}
        if images is None:
            self._refuse_placeholders(tokens)
        inputs = tokens if images is None else images.inputs
        blank = {name: tensor.to(tokens.device) for name, tensor in self._blank.items()}
        nothing = _sum(base.get_image_features(**blank, return_dict=True)) * 0.0
        return {
            "inputs_embeds": base.get_input_embeddings()(inputs) + nothing,
            "position_ids": _along(positions.expand(self.family.axes, *positions.shape)),
        }

    def _refuse_placeholders(self, tokens: Tensor) -> None:
        forbidden = torch.tensor(self.family.forbidden, device=tokens.device)
        if count := int(torch.isin(tokens, forbidden).sum()):
            raise ImageMismatch(
                f"{count} tokens of a pass stand for images, and it has none: Pictures.shown gives samples theirs"
            )


def shown_by(samples: Sequence[Sample], family: Family, pixels: Mapping[str, Pixels]) -> Shown:
    """What samples show.

    Args:
        samples: in the order of their tokens.
        family: the model's.
        pixels: of every image that they name.

    Raises:
        ImageMismatch: placeholders and features of a sample differ; the message names it.
    """
    inputs, positions = [], []
    for sample in samples:
        tokens = sample.tokens.astype(np.int64)
        starts = _starts(sample, tokens, family, pixels)
        inputs.append(tokens)
        positions.append(family.positions(len(tokens), starts, [pixels[name] for name in sample.images]))
    counts = [len(sample.images) for sample in samples]
    return Shown(
        np.concatenate([np.zeros(0, np.int64), *inputs]),
        np.concatenate([np.zeros((family.axes, 0), np.int64), *positions], axis=1),
        np.repeat(np.arange(len(samples)), counts),
        tuple(name for sample in samples for name in sample.images),
        pixels,
    )


def _starts(sample: Sample, tokens: Ints, family: Family, pixels: Mapping[str, Pixels]) -> list[int]:
    """Where the tokens of each image begin; what the model wrote itself is taken out of `tokens`."""
    written = np.concatenate([np.zeros(len(sample.prompt_tokens), bool), sample.loss_mask.astype(bool)])
    tokens[written & np.isin(tokens, family.forbidden)] = NOT_SHOWN
    places, counts = np.flatnonzero(tokens == family.placeholder), np.array(sample.image_tokens, np.int64)
    features = [family.features_of(pixels[name])[0] for name in sample.images]
    if len(places) != counts.sum() or counts.tolist() != features:
        raise ImageMismatch(
            f"sample {sample.sample_id} has {len(places)} placeholders, {counts.sum()} recorded, for {sum(features)} "
            f"features of {len(features)} images"
        )
    starts: list[int] = places[np.cumsum(counts) - counts].tolist() if len(counts) else []
    return starts


def _along(positions: Tensor) -> Tensor:
    """Positions as models take them: those of a single axis without it."""
    return positions[0] if len(positions) == 1 else positions


def _in_order(features: Any, order: Sequence[int]) -> Any:
    """The features of distinct images as those of all images shown: the same tensors, as often as they are shown."""
    features.pooler_output = tuple(features.pooler_output[number] for number in order)
    if (levels := getattr(features, "deepstack_features", None)) is not None:
        features.deepstack_features = [tuple(level[number] for number in order) for level in levels]
    return features


def _sum(features: Any) -> Tensor:
    levels = getattr(features, "deepstack_features", None) or ()
    return torch.stack([part.sum() for level in (features.pooler_output, *levels) for part in level]).sum()
