"""The nouns: plain data that every room shares. No I/O, nothing of ours imported.

A `Sample` is an append-only list of `Turn`s behind a prompt. Invariant I1 holds after every append:
    len(loss_mask) == len(rollout_log_probs) == response_length == the spans' total
    tokens == prompt tokens + response tokens
Observation tokens have loss mask 0, log-prob 0.0 and version -1.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LARGEST_IMAGE",
    "OBSERVATION_STEP",
    "Float32",
    "Group",
    "Int32",
    "Lease",
    "LedgerEntry",
    "Sample",
    "SampleId",
    "Status",
    "StopReason",
    "Turn",
    "VersionSpan",
    "WeightVersion",
    "image_name",
]

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

OBSERVATION_STEP = -1

LARGEST_IMAGE = 64 * 2**20
"""Bytes of one image, compressed."""


class WeightVersion(NamedTuple):
    """Which weights: the trainer step that made them, and the trainer's incarnation after a restart.

    Lag compares steps only; equality compares both. Written `40`, or `40.1` after one restart.
    """

    step: int
    incarnation: int = 0

    def __str__(self) -> str:
        return f"{self.step}.{self.incarnation}" if self.incarnation else str(self.step)

    @classmethod
    def parse(cls, text: str) -> WeightVersion:
        """The inverse of `str`. Raises ValueError on anything else ("default", say)."""
        step, _, incarnation = text.partition(".")
        return cls(int(step), int(incarnation or 0))


class VersionSpan(NamedTuple):
    """Tokens [start, end) were written by one weight version (observations: step -1)."""

    start: int
    end: int
    version: WeightVersion


class Status(enum.StrEnum):
    """What has become of a sample."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


class StopReason(enum.StrEnum):
    """Why an episode ended. A reason caused by a setting has the setting's name."""

    ENV_DONE = "env_done"
    MODEL_DONE = "model_done"
    MAX_TURNS = "max_turns"
    MAX_RESPONSE_LEN = "max_response_len"
    MAX_CONTEXT_LEN = "max_context_len"
    MAX_TURN_LEN = "max_turn_len"
    IMAGE_PLACEHOLDER = "image_placeholder"
    PARSE_FAILURES = "parse_failures"
    DEADLINE = "deadline"
    ENV_FAILURE = "env_failure"
    ENGINE_FAILURE = "engine_failure"

    @property
    def status(self) -> Status:
        """The status that this reason gives the sample."""
        if self in (StopReason.ENV_DONE, StopReason.MODEL_DONE):
            return Status.COMPLETED
        if self in (StopReason.ENV_FAILURE, StopReason.ENGINE_FAILURE):
            return Status.FAILED
        return Status.TRUNCATED


@dataclass(frozen=True, slots=True)
class SampleId:
    """`group` is the group's number in the run, `index` the sibling's in the group, `attempt` its refill count.

    Written `12-3` for attempt 0 and `12-3-1` for the first refill.
    """

    group: int
    index: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.group}-{self.index}" + (f"-{self.attempt}" if self.attempt else "")

    @classmethod
    def parse(cls, text: str) -> SampleId:
        """The inverse of `str`. Raises ValueError on anything else."""
        return cls(*(int(part) for part in text.split("-")))


def image_name(image: bytes) -> str:
    """What an image is called everywhere: 32 hex digits of SHA-256 of its (compressed) bytes.

    Processors have instructions for it: half the time of BLAKE2b.
    """
    return hashlib.sha256(image).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write one sample. `number` and `nonce` together are the fencing token; neither counts failures."""

    sample_id: SampleId
    number: int
    nonce: str
    producer_id: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What one record of the journal added: a whole interaction, or a part of one that was cut (`complete` False).

    generated     int32 (g,)    what the engine sampled, stop token included
    log_probs     float32 (g,)  of the sampling distribution, logits / temperature
    observation   int32 (o,)    the delta tokens up to the next generation; empty after the last turn
    spans         over `generated` alone: start 0, end g, without gaps
    reward        info["reward"] of this interaction, 0.0 while it is incomplete
    images        names of the images that the observation shows, in order
    image_tokens  how many of the observation's tokens stand for each of them
    environment   what a resume needs: state_dict() of the environment or loop, or results of `once`; None without any
    timings       seconds: generate, env_step, encode, queue
    """

    index: int
    generated: Int32
    log_probs: Float32
    observation: Int32
    spans: tuple[VersionSpan, ...]
    complete: bool = True
    finish_reason: str = "stop"
    reward: float = 0.0
    env_retries: int = 0
    parse_failures: int = 0
    active_seconds: float = 0.0
    timings: Mapping[str, float] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    image_tokens: tuple[int, ...] = ()
    environment: Mapping[str, Any] | None = None
    action: str = ""

    def __post_init__(self) -> None:
        if len(self.generated) != len(self.log_probs):
            raise ValueError(f"{len(self.generated)} generated tokens but {len(self.log_probs)} log-probs")
        total = sum(span.end - span.start for span in self.spans)
        if total != len(self.generated):
            raise ValueError(f"version spans cover {total} of {len(self.generated)} generated tokens")

    @property
    def length(self) -> int:
        """Response tokens this record added, observation included."""
        return len(self.generated) + len(self.observation)


@dataclass(slots=True)
class Sample:
    """One trajectory. Grows only through `append`; arrays are joined when they are asked for.

    `prompt` is what the dataset gave (text or chat messages), `prompt_tokens` int32 (p,) its encoding, `prompt_images`
    and `prompt_image_tokens` what a turn's are of its observation. The totals, from `response_length` on, are kept as
    turns come: what a turn costs must not grow with the turns before it.
    """

    group_index: int
    index: int
    prompt: str | Sequence[Mapping[str, Any]]
    prompt_tokens: Int32
    attempt: int = 0
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 1.0
    sampling_seed: int = 0
    session_id: str = ""
    prompt_images: tuple[str, ...] = ()
    prompt_image_tokens: tuple[int, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    reward: float | None = None
    status: Status = Status.PENDING
    stop_reason: StopReason | None = None
    response_length: int = 0
    active_seconds: float = 0.0
    env_retries: int = 0
    parse_failures: int = 0
    _joined: Int32 = field(default_factory=lambda: np.zeros(0, np.int32), init=False, repr=False, compare=False)
    _joined_turns: int = field(default=0, init=False, repr=False, compare=False)

    def append(self, turn: Turn) -> None:
        """Adds one record; raises ValueError when it is not the next interaction nor the open one's continuation."""
        if turn.index != self.next_turn:
            raise ValueError(f"turn {turn.index} appended where turn {self.next_turn} is next")
        self.turns.append(turn)
        self.response_length += turn.length
        self.active_seconds += turn.active_seconds
        self.env_retries += turn.env_retries
        self.parse_failures += turn.parse_failures

    def restart(self) -> None:
        """Drops every turn: the episode begins again."""
        self.turns.clear()
        self.response_length = self.env_retries = self.parse_failures = 0
        self.active_seconds = 0.0
        self._joined, self._joined_turns = self._joined[:0], 0

    @property
    def sample_id(self) -> SampleId:
        """The sample's identity in the buffer."""
        return SampleId(self.group_index, self.index, self.attempt)

    @property
    def next_turn(self) -> int:
        """Index of the interaction that the next record belongs to, which is the number of complete ones."""
        if not self.turns:
            return 0
        return self.turns[-1].index + self.turns[-1].complete

    @property
    def open_turn(self) -> list[Turn]:
        """The records of the turn under way, in order; none after a complete one."""
        if not self.turns or self.turns[-1].complete:
            return []
        return list(itertools.takewhile(lambda turn: not turn.complete, reversed(self.turns)))[::-1]

    @property
    def response(self) -> Int32:
        """Response token ids, int32 (r,), read-only: generated and observation tokens in order."""
        if new := self.turns[self._joined_turns :]:
            parts = [part for turn in new for part in (turn.generated, turn.observation)]
            self._joined, self._joined_turns = np.concatenate([self._joined, *parts]), len(self.turns)
            self._joined.setflags(write=False)
        return self._joined

    @property
    def images(self) -> tuple[str, ...]:
        """Names of all images, in the order in which `tokens` has their placeholders."""
        return (*self.prompt_images, *(name for turn in self.turns for name in turn.images))

    @property
    def image_tokens(self) -> tuple[int, ...]:
        """How many of `tokens` stand for each of `images`."""
        return (*self.prompt_image_tokens, *(count for turn in self.turns for count in turn.image_tokens))

    @property
    def tokens(self) -> Int32:
        """Prompt and response token ids, int32 (p + r,)."""
        return np.concatenate([self.prompt_tokens, self.response])

    @property
    def loss_mask(self) -> NDArray[np.uint8]:
        """1 where the model wrote the token, 0 on observations, uint8 (r,)."""
        lengths = [length for turn in self.turns for length in (len(turn.generated), len(turn.observation))]
        return np.repeat(np.resize(np.array([1, 0], np.uint8), len(lengths)), lengths)

    @property
    def rollout_log_probs(self) -> Float32:
        """Log-probs recorded by the engine, 0.0 on observations, float32 (r,)."""
        parts = [part for t in self.turns for part in (t.log_probs, np.zeros(len(t.observation), np.float32))]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    @property
    def weight_versions(self) -> tuple[VersionSpan, ...]:
        """Run-length version spans over the response; neighbours of one version are merged."""
        spans: list[VersionSpan] = []
        at = 0
        for turn in self.turns:
            pieces = [(s.end - s.start, s.version) for s in turn.spans]
            if len(turn.observation):
                pieces.append((len(turn.observation), WeightVersion(OBSERVATION_STEP)))
            for length, version in pieces:
                if spans and spans[-1].version == version:
                    spans[-1] = VersionSpan(spans[-1].start, at + length, version)
                else:
                    spans.append(VersionSpan(at, at + length, version))
                at += length
        return tuple(spans)

    @property
    def version_steps(self) -> Int32:
        """The step of the version that wrote each response token, -1 on observations, int32 (r,)."""
        steps = np.full(self.response_length, OBSERVATION_STEP, np.int32)
        for span in self.weight_versions:
            steps[span.start : span.end] = span.version.step
        return steps

    def check(self) -> None:
        """Asserts invariant I1, turn by turn: what the properties join, they join from these, one entry a token."""
        for turn in self.turns:
            assert len(turn.log_probs) == len(turn.generated)
            assert [span.start for span in turn.spans] == [0, *(span.end for span in turn.spans)][: len(turn.spans)]
            assert sum(span.end - span.start for span in turn.spans) == len(turn.generated)
        assert sum(turn.length for turn in self.turns) == self.response_length


@dataclass(slots=True)
class Group:
    """Exactly `group_size` finished siblings that share one baseline; `v0` was stamped at admission."""

    index: int
    v0: int
    samples: list[Sample]
    prompt_index: int = 0


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one step trained on: the groups in order, and the knobs in force when they were taken."""

    step: int
    groups: tuple[int, ...]
    max_staleness: int
    max_lag: int
