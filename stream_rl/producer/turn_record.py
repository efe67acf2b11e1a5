"""What one pass of the turn loop gathers, and the journal's record that it becomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream_rl.agents.handover import Answer
from stream_rl.buffer.records import SampleStart
from stream_rl.engine.generation import Generation
from stream_rl.multimodal import Encoded
from stream_rl.producer.chat import ChatEncoder
from stream_rl.producer.env_session import Step
from stream_rl.sample import Int32, Sample, Turn

__all__ = [
    "NOTHING", "NOTHING_SHOWN", "NO_TOKENS", "Acted", "Piece", "answer_of", "complete_record", "finish_reason",
    "open_record", "start_record",
]  # fmt: skip

NO_TOKENS = np.zeros(0, np.int32)
NOTHING_SHOWN = Encoded(NO_TOKENS)
CUT = ("length", "placeholder")
NOTHING = Generation(NO_TOKENS, np.zeros(0, np.float32), (), "abort")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one generation gave, and the seconds it took.

    `finish_reason` is ours: "stop" also where a cut follows the stop token, "length" only where a budget is spent,
    "placeholder" where the model wrote a token that stands for images; "abort" and "chunk" (as much as is committed at
    once) leave the turn open.
    """

    generation: Generation
    finish_reason: str
    seconds: float

    @property
    def open(self) -> bool:
        """Whether the turn goes on after these tokens."""
        return self.finish_reason in ("abort", "chunk")

    @property
    def cut(self) -> bool:
        """Whether the turn ended without the model's saying so: it is no action, and the last."""
        return self.finish_reason in CUT


@dataclass(frozen=True, slots=True)
class Acted:
    """What the environment made of a turn's text, and the seconds it took."""

    text: str
    step: Step
    seconds: float


def finish_reason(generation: Generation, said: Int32, chat: ChatEncoder, asked: int, left: int) -> str:
    """Why a piece ends. A stop token at the cut is a stop, whatever the engine calls it.

    Args:
        generation: what the piece has.
        said: all of the turn so far, int32 (g,).
        chat: knows which ids end a turn.
        asked: tokens that the engine was asked for.
        left: tokens that the budgets allowed.
    """
    last, length = (int(said[-1]) if len(said) else None), len(generation.tokens)
    if last in chat.stop_token_ids:
        return "stop"
    if last in chat.forbidden:
        return "placeholder"
    return generation.finish_reason if length < asked else "length" if length >= left else "chunk"


def start_record(sample: Sample) -> SampleStart:
    """Record 0 of a sample's journal; its prompt has images by their names, as JSON has no bytes."""
    return SampleStart(
        _by_names(sample.prompt, sample.prompt_images),
        sample.prompt_tokens,
        sample.temperature,
        sample.sampling_seed,
        sample.label,
        sample.metadata,
        sample.prompt_images,
        sample.prompt_image_tokens,
    )


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
        timings=_seconds(piece),
    )


def complete_record(
    index: int,
    piece: Piece,
    acted: Acted,
    *,
    observation: Encoded,
    encode_seconds: float,
    env_retries: int,
    active_seconds: float,
) -> Turn:
    """The record that completes turn `index`; `observation` is empty when the episode ends with it."""
    generation, step = piece.generation, acted.step
    return Turn(
        index=index,
        generated=generation.tokens,
        log_probs=generation.log_probs,
        observation=observation.tokens,
        spans=generation.spans,
        finish_reason=piece.finish_reason,
        reward=step.reward,
        env_retries=env_retries,
        parse_failures=step.parse_failures,
        active_seconds=active_seconds,
        timings={**_seconds(piece), "env_step": acted.seconds, "encode": encode_seconds},
        images=observation.names,
        image_tokens=observation.image_tokens,
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
        "length" if records[-1].finish_reason in CUT else "stop",
        versions[-1] if versions else "",
    )


def _seconds(piece: Piece) -> dict[str, float]:
    return {"generate": piece.seconds, "queue": piece.generation.queue_seconds}


def _by_names(prompt: str | Sequence[Mapping[str, Any]], names: Sequence[str]) -> str | Sequence[Mapping[str, Any]]:
    if isinstance(prompt, str) or not names:
        return prompt
    left = iter(names)
    return [
        {**message, "content": [_by_name(part, left) for part in content]}
        if isinstance(content := message.get("content"), list | tuple)
        else message
        for message in prompt
    ]


def _by_name(part: Mapping[str, Any], left: Iterator[str]) -> Mapping[str, Any]:
    return part if part.get("type", "text") == "text" else {"type": "image", "image": next(left)}
