"""The fields of a line in RUN/turns/*.jsonl: names, types as DuckDB has them, meaning. docs/turn-log.md shows them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["TURN_FIELDS"]

TURN_FIELDS: Mapping[str, tuple[str, str]] = {
    "time": ("DOUBLE", "when the buffer had accepted it, seconds since the epoch"),
    "sample": ("VARCHAR", "the sample: group-index, and -attempt for a refill"),
    "group": ("BIGINT", "number of the group in the run"),
    "index": ("BIGINT", "which sibling of the group"),
    "attempt": ("BIGINT", "0, or how many siblings before it failed"),
    "turn": ("BIGINT", "place of the turn in its episode, from 0"),
    "complete": ("BOOLEAN", "false for a part of a turn that was interrupted, or is committed in chunks"),
    "position": ("BIGINT", "place of the record in the sample's journal; a record at an earlier one replaces the rest"),
    "prompt": ("BIGINT", "tokens of the sample's prompt"),
    "generated": ("BIGINT", "tokens that the model wrote"),
    "observation": ("BIGINT", "tokens that it was shown then"),
    "versions": ("VARCHAR[]", "the weight versions that wrote them, in order"),
    "generate_seconds": ("DOUBLE", "waiting for the engine"),
    "queue_seconds": ("DOUBLE", "of these in the engine's queue"),
    "env_seconds": ("DOUBLE", "the environment's step"),
    "encode_seconds": ("DOUBLE", "encoding the observation"),
    "commit_seconds": ("DOUBLE", "the commit, until it was acknowledged"),
    "env_retries": ("BIGINT", "infrastructure errors that the turn was forgiven"),
    "reward": ("DOUBLE", "the turn's own reward"),
    "finish_reason": ("VARCHAR", "stop, length, placeholder (an image's token), abort (interrupted) or chunk"),
    "environment": ("VARCHAR", "name of the environment"),
}
