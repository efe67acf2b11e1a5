"""The walk that is seen: its pictures say enough, and without them no policy gets far."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stream_rl.envs.base import EnvSample, ResumeClass, resume_class
from stream_rl.envs.grid_walk_images import DOT, GOAL, MOVES, GridWalk, build_env, prompt
from stream_rl.errors import ActionError, EnvironmentLoadError

texts = st.sampled_from(["up", "down", "left", " right ", "north", "", "up down"])


def frame_of(observation) -> Image.Image:
    (image,) = observation["multi_modal_data"]["image"]
    return image


def centre(frame: Image.Image, colour: tuple[int, int, int], size: int) -> tuple[int, int]:
    """Row and column of the cell whose middle has this colour."""
    places = [(row, column) for row in range(size) for column in range(size)]
    side = frame.width
    middle = {at: frame.getpixel(tuple((2 * n + 1) * side // (2 * size) for n in reversed(at))) for at in places}
    (found,) = [at for at, seen in middle.items() if seen == colour]
    return found


def towards(dot: tuple[int, int], goal: tuple[int, int]) -> str:
    if dot[0] != goal[0]:
        return "down" if goal[0] > dot[0] else "up"
    return "right" if goal[1] > dot[1] else "left"


async def step(env: GridWalk, text: str):
    try:
        observation, done, info = await env.step(text)
    except ActionError as error:
        return str(error), False, error.reward
    return frame_of(observation), done, info["reward"]


@pytest.mark.parametrize(("size", "side"), [(2, 32), (2, 28), (3, 32), (5, 64)])
async def test_who_only_looks_always_wins(size: int, side: int) -> None:
    for index in range(40):
        row = prompt(1, index, SimpleNamespace(size=size))
        env = build_env(EnvSample(row["prompt"], row["label"]), size=size, frame=side)
        frame, done, total = frame_of((await env.reset())[0]), False, 0.0
        for _ in range(2 * (size - 1)):
            assert frame.size == (side, side)
            frame, done, reward = await step(env, towards(centre(frame, DOT, size), centre(frame, GOAL, size)))
            total += reward
            if done:
                break
        assert done
        assert math.isclose(total, 1.0)


@pytest.mark.parametrize(("size", "turns", "best"), [(2, 3, 0.625), (3, 4, 0.4125)])
async def test_the_best_policy_without_sight(size: int, turns: int, best: float) -> None:
    cells = list(itertools.product(range(size), repeat=2))
    episodes = [(start, goal) for start in cells for goal in cells if start != goal]
    found = 0.0
    for moves in itertools.product(MOVES, repeat=turns):
        total = 0.0
        for start, goal in episodes:
            env = GridWalk(start, goal, size=size, blank=True)
            for move in moves:
                _, done, reward = await step(env, move)
                total += reward
                if done:
                    break
        found = max(found, total / len(episodes))
    assert found == pytest.approx(best)


async def test_blank_pictures_are_all_alike() -> None:
    frames = set()
    for index in range(20):
        env = build_env(EnvSample("go", prompt(0, index)["label"]), blank_observations=True)
        frames |= {frame_of((await env.reset())[0]).tobytes(), (await step(env, "up"))[0].tobytes()}
    assert frames == {bytes(32 * 32 * 3)}


@given(said=st.lists(texts, min_size=1, max_size=6), index=st.integers(0, 50))
async def test_the_sum_over_turns_is_one_or_a_tenth_of_the_well_formed_share(said: list[str], index: int) -> None:
    env = build_env(EnvSample("go", prompt(0, index)["label"]))
    total, well_formed = 0.0, 0
    for count, text in enumerate(said, 1):
        _, done, reward = await step(env, text)
        total += reward
        well_formed += text.strip() in MOVES
        assert math.isclose(total, 1.0 if done else 0.1 * well_formed / count, abs_tol=1e-12)
        if done:
            break


@given(said=st.lists(texts, min_size=2, max_size=6), cut=st.integers(0, 5))
async def test_a_loaded_snapshot_goes_on_like_the_original(said: list[str], cut: int) -> None:
    whole, copy = (GridWalk((0, 0), (2, 2), size=3) for _ in range(2))
    assert resume_class(whole) is ResumeClass.SNAPSHOT
    for text in said[:cut]:
        await step(whole, text)
    copy.load_state_dict(whole.state_dict())

    assert [await step(copy, text) for text in said[cut:]] == [await step(whole, text) for text in said[cut:]]


async def test_a_cut_response_is_a_malformed_action() -> None:
    env = GridWalk((0, 0), (1, 1))
    await env.step("up")
    assert (await env.cut("down"))["reward"] == pytest.approx(-0.05)


def test_prompts_depend_on_seed_and_index_and_reach_every_pair() -> None:
    labels = [prompt(0, index)["label"] for index in range(200)]
    assert labels == [prompt(0, index)["label"] for index in range(200)]
    assert labels[:30] != [prompt(1, index)["label"] for index in range(30)]
    assert len({(label["start"], label["goal"]) for label in labels}) == 12


async def test_equal_situations_are_shown_by_one_picture() -> None:
    one, other = GridWalk((0, 0), (1, 1)), GridWalk((0, 1), (1, 1))
    await other.step("left")
    assert frame_of((await one.reset())[0]) is (await step(other, "up"))[0]


@pytest.mark.parametrize("size", [1, 17, "2", 2.5])
def test_a_grid_that_cannot_be_drawn_is_refused(size: object) -> None:
    with pytest.raises(EnvironmentLoadError, match=r"environment.args.size=.* from 2 to 16"):
        prompt(0, 0, SimpleNamespace(size=size))
