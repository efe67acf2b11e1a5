"""Samples as a turn loop takes them: new, or rebuilt from a journal; and the seeds that make them replayable."""

from __future__ import annotations

import hashlib

import numpy as np

from stream_rl.buffer.records import LeasedSample
from stream_rl.producer.loading import Rollout
from stream_rl.producer.prompts import PromptRow
from stream_rl.sample import Sample, SampleId

__all__ = ["new_sample", "rebuild", "sampling_seed", "turn_seed"]


def rebuild(leased: LeasedSample, rollout: Rollout) -> tuple[Sample, PromptRow]:
    """The sample as its journal has it, or a new one with the prompt of its index. Raises DataError for a bad row."""
    sample_id, config, start = leased.lease.sample_id, rollout.config, leased.start
    # A record has images by name alone; what an environment reads of its row must be the same as at the start.
    recorded = start is not None and not start.images
    row = PromptRow(start.prompt, start.label, start.metadata) if start and recorded else None
    row = row or rollout.prompts.row(leased.prompt_index)
    seed = start.sampling_seed if start else sampling_seed(config.seed, sample_id)
    temperature = start.temperature if start else config.rollout.temperature
    sample = new_sample(row, sample_id, seed, temperature, session_id=f"{sample_id}.{leased.lease.nonce}")
    if start is not None:
        sample.prompt_tokens = start.prompt_tokens
        sample.prompt_images, sample.prompt_image_tokens = start.images, start.image_tokens
    for turn in leased.turns:
        sample.append(turn)
    return sample, row


def new_sample(row: PromptRow, sample_id: SampleId, seed: int, temperature: float, *, session_id: str) -> Sample:
    """A sample without a token yet. By the session id its requests keep to one engine; their names begin with it."""
    return Sample(
        group_index=sample_id.group,
        index=sample_id.index,
        attempt=sample_id.attempt,
        prompt=row.prompt,
        prompt_tokens=np.zeros(0, np.int32),
        label=row.label,
        metadata=row.metadata,
        temperature=temperature,
        sampling_seed=seed,
        session_id=session_id,
    )


def sampling_seed(seed: int, sample: SampleId) -> int:
    """A sample's own seed, from the run's: siblings and refills differ, a resume does not."""
    return _seed(f"{seed} {sample}")


def turn_seed(sample_seed: int, turn: int) -> int:
    """The seed of a turn's requests: a continued turn keeps it, as the engine goes by position."""
    return _seed(f"{sample_seed} {turn}")


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1
