"""A rank's way from the names of images to what its model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stream_rl.config import Config
from stream_rl.consumer.batching import Samples
from stream_rl.consumer.model import Policy
from stream_rl.consumer.vision import shown_by
from stream_rl.multimodal.pixels import Load, Processed
from stream_rl.sample import Group

__all__ = ["Pictures"]


class Pictures:
    """Gives samples the images that they show; nothing where the model reads text only.

    Args:
        processed: images as the model takes them; None for a model that reads text only.
        load: reads images of the buffer by name.
    """

    def __init__(self, processed: Processed | None, load: Load) -> None:
        self._processed = processed
        self._load = load

    @classmethod
    def of(cls, config: Config, policy: Policy, load: Load) -> Pictures:
        """For a run's policy."""
        if policy.sight is None:
            return cls(None, load)
        return cls(Processed(policy.sight.family, config.multimodal, config.folder / "pixels"), load)

    def shown(self, samples: Samples, groups: Sequence[Group]) -> Samples:
        """The flat samples of groups, with their images.

        Raises:
            ImageMismatch: placeholders and features of a sample differ.
            ImageError: an image cannot be processed.
        """
        if self._processed is None:
            return samples
        of_groups = [sample for group in groups for sample in group.samples]
        pixels = self._processed.of([name for sample in of_groups for name in sample.images], self._load)
        return replace(samples, images=shown_by(of_groups, self._processed.family, pixels))
