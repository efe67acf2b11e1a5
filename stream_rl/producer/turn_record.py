"""What one pass of the turn loop gathers, and the journal's record that it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stream_rl.agents.handover import Answer
from stream_rl.engine.generation import Generation
from stream_rl.producer.env_session import Step
from stream_rl.sample import Int32, Turn

__all__ = ["NOTHING", "NO_TOKENS", "Acted", "Piece", "answer_of", "complete_record", "open_record"]

NO_TOKENS = np.zeros(0, np.int32)
NOTHING = Generation(NO_TOKENS, np.zeros(0, np.float32), (), "abort")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one generation gave, and the seconds it took.

    `finish_reason` is ours: "stop" also where a cut follows the stop token, "length" only where a budget is spent;
    "abort" and "chunk" (as much as is committed at once) leave the turn open.
    """

    generation: Generation
    finish_reason: str
    seconds: float

    @property
    def open(self) -> bool:
        """Whether the turn goes on after these tokens."""
        return self.finish_reason in ("abort", "chunk")


@dataclass(frozen=True, slots=True)
class Acted:
    """What the environment made of a turn's text, and the seconds it took."""

    text: str
    step: Step
    seconds: float


def open_record(index: int, piece: Piece, *, active_seconds: float) -> Turn:
    """The record of tokens that the environment has not heard of: turn `index` stays open."""
    generation = piece.generation
    return Turn(
        index=index,
        generated=generation.tokens,
        log_probs=generation.log_probs,
        observation=NO_TOKENS,
        spans=generation.spans,
        complete=False,
        finish_reason=piece.finish_reason,
        active_seconds=active_seconds,
        timings={"generate": piece.seconds, "queue": generation.queue_seconds},
    )


def complete_record(
    index: int,
    piece: Piece,
    acted: Acted,
    *,
    observation: Int32,
    encode_seconds: float,
    env_retries: int,
    active_seconds: float,
) -> Turn:
    """The record that completes turn `index`; `observation` int32 (o,) is empty when the episode ends with it."""
    step, cut = acted.step, open_record(index, piece, active_seconds=active_seconds)
    return replace(
        cut,
        complete=True,
        observation=observation,
        reward=step.reward,
        env_retries=env_retries,
        parse_failures=step.parse_failures,
        timings={**cut.timings, "env_step": acted.seconds, "encode": encode_seconds},
        environment=step.state,
        action=acted.text,
    )


def answer_of(records: Sequence[Turn], text: str) -> Answer:
    """What the model said in one interaction, of all its records in order."""
    versions = [str(span.version) for record in records for span in record.spans]
    return Answer(
        text,
        np.concatenate([NO_TOKENS, *(record.generated for record in records)]),
        np.concatenate([NOTHING.log_probs, *(record.log_probs for record in records)]),
        "length" if records[-1].finish_reason == "length" else "stop",
        versions[-1] if versions else "",
    )
