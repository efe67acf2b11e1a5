"""One-digit addition, read leniently."""

from __future__ import annotations

import pytest

from stream_rl.envs.arithmetic import build_env, prompt
from stream_rl.envs.base import EnvSample


@pytest.mark.parametrize(
    ("text", "reward"), [("7", 1.0), ("3 + 4 = 7.", 1.0), ("7 is not 8", 0.0), ("17", 0.0), ("seven", 0.0), ("", 0.0)]
)
async def test_the_last_whole_number_counts_whole_or_cut(text, reward):
    env = build_env(EnvSample("What is 3 + 4?", 7))

    assert await env.step(text) == ({}, True, {"reward": reward})
    assert await env.cut(text) == {"reward": reward}


def test_the_label_is_the_sum_of_the_questions_digits():
    for index in range(50):
        made = prompt(1, index)
        _, _, left, _, right = made["prompt"].rstrip("?").split()
        assert made["label"] == int(left) + int(right)
        assert max(int(left), int(right)) <= 9
