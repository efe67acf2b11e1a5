"""Finished samples as they leave an engine: tokens, loss mask, log-probs and versions, one entry a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_rl.buffer.records import Record, SampleStart
from stream_rl.sample import Float32, Int32, Turn, VersionSpan, WeightVersion

BYTES_PER_TOKEN = 13
"""int32 token, uint8 mask, float32 log-prob, int32 version."""

VOCABULARY = 150_000
TURNS = 1
"""A finished sample is one record; turn by turn they are measured by themselves."""


@dataclass(frozen=True, slots=True)
class Payload:
    """One sample of n tokens: int32 (n,), uint8 (n,), float32 (n,), int32 (n,)."""

    tokens: Int32
    loss_mask: NDArray[np.uint8]
    log_probs: Float32
    versions: Int32

    def columns(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        return {
            "tokens": self.tokens,
            "loss_mask": self.loss_mask,
            "log_probs": self.log_probs,
            "versions": self.versions,
        }

    def lists(self) -> dict[str, list[float]]:
        """The same as lists of numbers, as a queue of Python objects holds them."""
        return {name: column.tolist() for name, column in self.columns().items()}

    def raw(self) -> bytes:
        """The arrays' bytes, one behind the other."""
        return b"".join(column.tobytes() for column in self.columns().values())


def turn(index: int, tokens: int, random: np.random.Generator, version: int = 0) -> Turn:
    """One interaction of `tokens` tokens: three quarters generated, the rest observed."""
    generated = tokens - tokens // 4
    ids = np.minimum(random.zipf(1.3, tokens), VOCABULARY - 1).astype(np.int32)
    return Turn(
        index, ids[:generated], -random.exponential(0.7, generated).astype(np.float32), ids[generated:],
        (VersionSpan(0, generated, WeightVersion(version)),),
        timings={"generate": 1.25, "env_step": 0.01, "encode": 0.001, "queue": 0.1},
    )  # fmt: skip


def journal(tokens: int, seed: int, turns: int = TURNS) -> list[Record]:
    """A sample as our buffer keeps it: its start and its turns, `tokens` response tokens altogether."""
    random = np.random.default_rng(seed)
    start = SampleStart("a prompt", np.arange(64, dtype=np.int32))
    return [start, *(turn(index, tokens // turns, random, version=index // 2) for index in range(turns))]


def payload(records: list[Record]) -> Payload:
    """The same sample with one entry a token; the prompt is left out."""
    turns = [record for record in records if isinstance(record, Turn)]
    nothing = [np.zeros(len(turn.observation)) for turn in turns]
    return Payload(
        np.concatenate([part for turn in turns for part in (turn.generated, turn.observation)]),
        np.concatenate([np.repeat([1, 0], (len(t.generated), len(t.observation))) for t in turns]).astype(np.uint8),
        np.concatenate([part for t, none in zip(turns, nothing, strict=True) for part in (t.log_probs, none)]).astype(
            np.float32
        ),
        np.concatenate(
            [part for t, none in zip(turns, nothing, strict=True)
             for part in (np.full(len(t.generated), t.spans[0].version.step), none - 1)]
        ).astype(np.int32),
    )  # fmt: skip


class Pool:
    """A few distinct samples of each length, made once and put over and over, so that making them is not measured."""

    def __init__(self, seed: int, distinct: int = 8) -> None:
        self._seed = seed
        self._distinct = distinct
        self._made: dict[tuple[str, int], list[Any]] = {}

    def of(self, form: str, tokens: int) -> list[Any]:
        """Samples as "journal", "arrays", "lists" or "raw"."""
        key = (form, tokens)
        if key not in self._made:
            journals = [journal(tokens, self._seed + number) for number in range(self._distinct)]
            made = {
                "journal": lambda records: records,
                "arrays": lambda records: payload(records).columns(),
                "lists": lambda records: payload(records).lists(),
                "raw": lambda records: payload(records).raw(),
            }[form]
            self._made[key] = [made(records) for records in journals]
        return self._made[key]
