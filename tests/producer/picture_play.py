"""Episodes of the pictures' environment, played by engines with a script."""

from __future__ import annotations

from typing import Any

import numpy as np
from rollouts import RecordingJournal, ScriptedEngines, play

from stream_rl.models.tiny_vlm import VLM_WORDS
from stream_rl.producer.loading import Rollout
from stream_rl.producer.prompts import PromptRow
from stream_rl.sample import Sample

ID = {word: number for number, word in enumerate(VLM_WORDS)}
END, PAD = ID["<|im_end|>"], ID["<|image_pad|>"]
TURNS = 3


def says(*words: str) -> ScriptedEngines:
    """Engines that say these words in turn, each with the end token."""
    script = iter([[ID[word], END] for word in words])
    return ScriptedEngines(lambda _: next(script), end=END)


async def played(
    rollout: Rollout, *, cut: bool = False, row: PromptRow | None = None
) -> tuple[Sample, RecordingJournal, Any]:
    engines = says(*["up"] * 2 * TURNS)
    if cut:
        engines.cuts = iter([1, None] * TURNS)
        engines.policy = lambda given: [END] if given[-1] == ID["up"] else [ID["up"], END]
    sample, journal = await play(rollout, engines, row=row)
    return sample, journal, engines


def placeholders(ids: Any) -> int:
    return int(np.count_nonzero(np.asarray(ids) == PAD))
