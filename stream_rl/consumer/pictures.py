"""A rank's way from the names of images to what its model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stream_rl.config import Config
from stream_rl.consumer.batching import Samples
from stream_rl.consumer.model import Policy
from stream_rl.consumer.vision import shown_by
from stream_rl.errors import ModelError
from stream_rl.multimodal.pixels import Load, Processed
from stream_rl.sample import Group, Sample

__all__ = ["Pictures"]


class Pictures:
    """Gives samples the images that they show.

    Args:
        processed: images as the model takes them; None for a model that reads text only, whose samples may show none.
        load: reads images of the buffer by name.
        model: the model's path, for messages.
    """

    def __init__(self, processed: Processed | None, load: Load, model: str) -> None:
        self._processed = processed
        self._load = load
        self._model = model

    @classmethod
    def of(cls, config: Config, policy: Policy, load: Load) -> Pictures:
        """For a run's policy."""
        if policy.sight is None:
            return cls(None, load, config.model.path)
        processed = Processed(policy.sight.family, config.multimodal, config.folder / "pixels")
        return cls(processed, load, config.model.path)

    def shown(self, samples: Samples, groups: Sequence[Group]) -> Samples:
        """The flat samples of groups, with their images.

        Raises:
            ModelError: a sample shows images, and the model reads text only.
            ImageMismatch: placeholders and features of a sample differ.
            ImageError: an image cannot be processed.
        """
        of_groups = [sample for group in groups for sample in group.samples]
        if self._processed is None:
            self._refuse_images(of_groups)
            return samples
        pixels = self._processed.of([name for sample in of_groups for name in sample.images], self._load)
        return replace(samples, images=shown_by(of_groups, self._processed.family, pixels))

    def _refuse_images(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            if sample.images:
                raise ModelError(
                    f"sample {sample.sample_id} shows {len(sample.images)} images, and model.path={self._model!r} "
                    "reads text only: set it to the model that the sample was played with, or start a new run elsewhere"
                )
