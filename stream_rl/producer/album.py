"""The pictures of one sample, in the order in which its tokens show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stream_rl.engine.generation import ImageInputs
from stream_rl.errors import ImageError
from stream_rl.multimodal import Encoded, Picture
from stream_rl.multimodal.eyes import Eyes
from stream_rl.sample import Sample

__all__ = ["Album"]


class Album:
    """What an episode's requests and commits carry along.

    Invariant I9: what goes in has as many placeholders as features, so prompt and turns have.

    Args:
        eyes: the model's; None for one that reads text only, whose album stays empty.
    """

    def __init__(self, eyes: Eyes | None) -> None:
        self._eyes = eyes
        self._pictures: list[Picture] = []
        self._recorded = 0

    def begin(self, sample: Sample, prompt: Encoded) -> None:
        """Gives a sample that has no turns its prompt. Raises ImageError."""
        self._check(prompt)
        sample.prompt_tokens = prompt.tokens
        sample.prompt_images, sample.prompt_image_tokens = prompt.names, prompt.image_tokens
        self._pictures, self._recorded = list(prompt.pictures), 0

    def known(self, sample: Sample) -> dict[str, bytes]:
        """Of the pictures of a sample that is resumed, those that other samples show as well: their bytes by name.

        Raises ImageError where there are any, and the model reads text only.
        """
        if not sample.images:
            return {}
        if self._eyes is None:
            raise ImageError(f"sample {sample.sample_id} shows images, and the model of model.path reads text only")
        shown = map(self._eyes.shown, sample.images, sample.image_tokens)
        return {picture.name: picture.data for picture in shown if picture is not None}

    def restore(self, sample: Sample, found: Mapping[str, bytes]) -> None:
        """The pictures of a sample that is resumed, of their bytes by name."""
        named = zip(sample.images, sample.image_tokens, strict=True)
        pictures = [Picture(found[name], tokens, name) for name, tokens in named]
        self._pictures = pictures if self._eyes is None else list(map(self._eyes.shared, pictures))
        self._recorded = len(self._pictures)

    def add(self, observation: Encoded) -> None:
        """A turn's. Raises ImageError."""
        self._check(observation)
        self._pictures += observation.pictures

    def unrecorded(self) -> Sequence[Picture]:
        """Those that no commit has carried yet; from now on one has."""
        new, self._recorded = self._pictures[self._recorded :], len(self._pictures)
        return new

    def inputs(self) -> ImageInputs | None:
        """All of them for a request, each encoded once in its life; None where there are none."""
        if self._eyes is None or not self._pictures:
            return None
        tokens = tuple(picture.tokens for picture in self._pictures)
        return ImageInputs(self._eyes.family.placeholder, tokens, tuple(picture.sent for picture in self._pictures))

    def _check(self, shown: Encoded) -> None:
        if self._eyes is not None:
            self._eyes.check(shown.tokens, shown.image_tokens)
