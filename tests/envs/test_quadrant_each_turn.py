"""A new picture every turn: each must be looked at, and looking is enough."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stream_rl.envs.base import EnvSample, ResumeClass, resume_class
from stream_rl.envs.quadrant_each_turn import QUADRANTS, QuadrantEachTurn, build_env, prompt
from stream_rl.errors import EnvironmentLoadError

names = st.sampled_from([*QUADRANTS, " northeast ", "up", ""])


def frame_of(observation) -> Image.Image:
    (image,) = observation["multi_modal_data"]["image"]
    return image


def bright(frame: Image.Image) -> str:
    """The name of the quadrant whose middle is not black."""
    quarter = frame.width // 4
    lit = [
        name
        for name, (row, column) in QUADRANTS.items()
        if frame.getpixel((quarter * (1 + 2 * column), quarter * (1 + 2 * row))) != (0, 0, 0)
    ]
    (found,) = lit
    return found


async def step(env: QuadrantEachTurn, text: str):
    observation, done, info = await env.step(text)
    return frame_of(observation) if observation else None, done, info["reward"]


@pytest.mark.parametrize("settings", [{}, {"turns": 20, "frame": 96, "colours": True}])
async def test_who_only_looks_gets_everything(settings: dict) -> None:
    for index in range(20):
        env = build_env(EnvSample("where", prompt(2, index)["label"]), **settings)
        frame, total, done, turns = frame_of((await env.reset())[0]), 0.0, False, 0
        while not done:
            frame, done, reward = await step(env, bright(frame))
            total += reward
            turns += 1
        assert turns == settings.get("turns", 3)
        assert total == pytest.approx(1.0)


async def test_no_turn_can_be_guessed_from_the_others() -> None:
    """Every quadrant is as likely as the others after every history of one picture: .325 is all that is to be had."""
    after: dict[str, Counter[str]] = {name: Counter() for name in QUADRANTS}
    for index in range(4000):
        env = QuadrantEachTurn(prompt(0, index)["label"], turns=2)
        first = bright(frame_of((await env.reset())[0]))
        frame, _, _ = await step(env, first)
        after[first][bright(frame)] += 1
    shares = [count / first.total() for first in after.values() for count in first.values()]
    assert len(shares) == 16
    assert all(0.19 < share < 0.31 for share in shares)


async def test_blank_pictures_are_all_alike_and_answers_still_count() -> None:
    frames, rewards = set(), []
    for index in range(200):
        env = build_env(EnvSample("where", prompt(0, index)["label"]), blank_observations=True)
        frames.add(frame_of((await env.reset())[0]).tobytes())
        for _ in range(3):
            frame, _, reward = await step(env, "southeast")
            frames |= {frame.tobytes()} if frame else set()
            rewards.append(reward)
    assert frames == {bytes(32 * 32 * 3)}
    assert sum(rewards) / 200 == pytest.approx(0.325, abs=0.03)


async def test_with_colours_no_two_pictures_are_alike() -> None:
    frames = []
    for index in range(10):
        env = QuadrantEachTurn(prompt(0, index)["label"], turns=20, colours=True)
        frames.append(frame_of((await env.reset())[0]))
        frames += [(await step(env, "northwest"))[0] for _ in range(19)]
    assert len({frame.tobytes() for frame in frames}) == len(frames) == 200


async def test_what_is_no_name_gets_nothing_and_the_next_picture_comes() -> None:
    said, twin = QuadrantEachTurn(7), QuadrantEachTurn(7)
    frame = frame_of((await said.reset())[0])
    wrong = next(name for name in QUADRANTS if name != bright(frame))
    after, done, reward = await step(said, "up")
    assert (done, reward) == (False, 0.0)
    assert (await step(twin, wrong)) == (after, False, pytest.approx(0.1 / 3))


@given(said=st.lists(names, min_size=2, max_size=8), cut=st.integers(0, 7))
async def test_a_loaded_snapshot_goes_on_like_the_original(said: list[str], cut: int) -> None:
    whole, copy = (QuadrantEachTurn(11, turns=9) for _ in range(2))
    assert resume_class(whole) is ResumeClass.SNAPSHOT
    for text in said[:cut]:
        await step(whole, text)
    copy.load_state_dict(whole.state_dict())

    assert [await step(copy, text) for text in said[cut:]] == [await step(whole, text) for text in said[cut:]]


def test_prompts_depend_on_seed_and_index() -> None:
    assert prompt(0, 3) == prompt(0, 3)
    assert len({prompt(seed, index)["label"] for seed in range(2) for index in range(50)}) == 100


def test_an_episode_without_turns_is_refused() -> None:
    with pytest.raises(EnvironmentLoadError, match=r"environment.args.turns=0"):
        build_env(EnvSample("where", 1), turns=0)
