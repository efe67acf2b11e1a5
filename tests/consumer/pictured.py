"""Groups whose samples show images beside samples that show none, and how transformers itself computes them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from trajectories import turn

from stream_rl.models.tiny_vlm import VLM_WORDS
from stream_rl.multimodal.family import Family
from stream_rl.multimodal.reading import rgb
from stream_rl.sample import Group, Sample, image_name

START, END = VLM_WORDS.index("<|vision_start|>"), VLM_WORDS.index("<|vision_end|>")
WORDS = range(VLM_WORDS.index("go"), len(VLM_WORDS))


class Frames:
    """Random images of several sizes by name; `side` is that of one feature."""

    def __init__(self, family: Family, side: int) -> None:
        self.family = family
        self.data: dict[str, bytes] = {}
        self._side = side

    def shown(self, seed: int) -> tuple[str, int, list[int]]:
        """An image's name, its features, and its ids."""
        random = np.random.default_rng(seed)
        rows, columns = int(random.integers(1, 3)), int(random.integers(1, 4))
        pixels = random.integers(0, 256, (rows * self._side, columns * self._side, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        name, tokens = image_name(file.getvalue()), self.family.tokens_of(*pixels.shape[:2])
        self.data[name] = file.getvalue()
        return name, tokens, [START, *[self.family.placeholder] * tokens, END]


def pictured_groups(frames: Frames, images: Sequence[Sequence[int]], *, seed: int = 0) -> list[Group]:
    """One group for each row of `images`, one sample for each number of images in it; siblings share their prompt's."""
    random = np.random.default_rng(seed)
    return [
        Group(g, 0, [_sample(random, frames, g, index, count) for index, count in enumerate(row)])
        for g, row in enumerate(images)
    ]


def _sample(random: np.random.Generator, frames: Frames, group: int, index: int, count: int) -> Sample:
    name, tokens, ids = frames.shown(group) if count else ("", 0, [])
    prompt = [*_words(random), *ids, *_words(random)]
    sample = Sample(group, index, "p", np.array(prompt, np.int32), reward=float(index % 2))
    if count:
        sample.prompt_images, sample.prompt_image_tokens = (name,), (tokens,)
    for number in range(max(1, count)):
        sample.append(_turn(random, frames, number, 1000 * group + 100 * index + number, shows=number < count - 1))
    return sample


def _turn(random: np.random.Generator, frames: Frames, number: int, seed: int, *, shows: bool) -> Any:
    said = turn(number, _words(random), [*_words(random)], log_prob=-3.0)
    if not shows:
        return said
    name, tokens, ids = frames.shown(seed)
    observation = np.array([*_words(random), *ids], np.int32)
    changes = {"observation": observation, "images": (name,), "image_tokens": (tokens,)}
    return type(said)(**{**{field: getattr(said, field) for field in said.__slots__}, **changes})


def _words(random: np.random.Generator) -> list[int]:
    return random.choice(list(WORDS), int(random.integers(1, 5))).tolist()


def log_probs_by_transformers(model: Any, sample: Sample, data: Mapping[str, bytes], family: Family) -> Tensor:
    """Of the sample's generated tokens, by the model's own call, with everything that its processor gives it."""
    ids = torch.from_numpy(sample.tokens.astype(np.int64))[None]
    given: dict[str, Any] = {"mm_token_type_ids": (ids == family.placeholder).int()}
    if sample.images:
        given |= family.pixels([rgb(data[name]) for name in sample.images])
    with torch.no_grad():
        logits = model(input_ids=ids, **given).logits[0]
    prompt = len(sample.prompt_tokens)
    places = prompt + np.flatnonzero(sample.loss_mask)
    return torch.log_softmax(logits[places - 1], -1).gather(1, ids[0, places][:, None])[:, 0]
