"""The guessing game: its reward adds up, and a policy needs its answers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.envs.base import EnvSample
from stream_rl.envs.guess_number import GuessNumber, build_env, prompt
from stream_rl.errors import ActionError

texts = st.sampled_from(["1", "3", "8", " 5 ", "9", "0", "", "guess", "3 4", "٣"])


async def step(env: GuessNumber, text: str) -> tuple[str, bool, float]:
    try:
        observation, done, info = await env.step(text)
    except ActionError as error:
        return str(error), False, error.reward
    return observation["obs_str"], done, info["reward"]


@given(number=st.integers(1, 8), said=st.lists(texts, min_size=1, max_size=6))
async def test_the_sum_over_turns_is_one_or_a_tenth_of_the_well_formed_share(number, said):
    env = GuessNumber(number)
    total, well_formed = 0.0, 0
    for count, text in enumerate(said, 1):
        answer, done, reward = await step(env, text)
        total += reward
        well_formed += answer != "invalid"
        assert math.isclose(total, 1.0 if done else 0.1 * well_formed / count, abs_tol=1e-12)
        if done:
            break


async def test_halving_finds_every_number_in_four_guesses():
    for number in range(1, 9):
        env, low, high = GuessNumber(number), 1, 8
        for _ in range(4):
            guess = (low + high) // 2
            answer, done, _ = await step(env, str(guess))
            if done:
                break
            low, high = (guess + 1, high) if answer == "higher" else (low, guess - 1)
        assert done


async def test_blanked_answers_say_nothing():
    answers = set()
    for number in range(1, 8):
        env = build_env(EnvSample("guess", number), blank_observations=True)
        answers |= {(await step(env, guess))[0] for guess in ("8", "guess")}

    assert answers == {"invalid"}


@given(said=st.lists(texts, min_size=2, max_size=5), cut=st.integers(0, 4))
async def test_a_loaded_snapshot_goes_on_like_the_original(said, cut):
    whole, copy = GuessNumber(5), GuessNumber(5)
    for text in said[:cut]:
        await step(whole, text)
    copy.load_state_dict(whole.state_dict())

    assert [await step(copy, text) for text in said[cut:]] == [await step(whole, text) for text in said[cut:]]


async def test_a_cut_response_is_a_malformed_guess():
    env = GuessNumber(5)
    await env.step("4")

    assert (await env.cut("5"))["reward"] == pytest.approx(-0.05)


def test_prompts_depend_on_seed_and_index_and_reach_every_number():
    assert prompt(0, 3) == prompt(0, 3)
    assert {prompt(0, index)["label"] for index in range(100)} == set(range(1, 9))
    assert [prompt(0, n)["label"] for n in range(30)] != [prompt(1, n)["label"] for n in range(30)]
