"""Values of labels that stand for something unbounded."""

from __future__ import annotations

import re

from stream_rl.config import Config

__all__ = ["LENGTHS", "environment_label", "length_bucket", "turn_label"]

LENGTHS = ("0-256", "256-1k", "1k-4k", "4k-16k", "16k-64k", ">64k")
"""Buckets of response lengths."""
_ENDS = (256, 1024, 4096, 16384, 65536)
TURNS_TOLD_APART = 16


def length_bucket(tokens: float) -> str:
    """The bucket of LENGTHS that a response of so many tokens is in; a bound belongs to the shorter one."""
    return LENGTHS[sum(tokens > end for end in _ENDS)]


def turn_label(index: int) -> str:
    """A turn's place in its episode; later ones share one label."""
    return str(index) if index < TURNS_TOLD_APART else f">={TURNS_TOLD_APART}"


def environment_label(config: Config) -> str:
    """The name under which a run's episodes are counted: its environment's, or its agent loop's without one."""
    path = config.environment.path
    if path is None:
        return re.split(r"[:.]", config.rollout.agent or "single_turn_agent")[-1]
    return path.removesuffix(".py").replace("/", ".").rpartition(".")[2]
