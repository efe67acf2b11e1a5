r"""Geometry in several turns: the tool says right or wrong, the last answer counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.envs.base import EnvSample, ResumeClass, resume_class
from stream_rl.envs.geo_multi_turn import INSTRUCTION, GeoMultiTurn, build_env, prompt
from stream_rl.errors import ActionError, EnvironmentLoadError


def call(answer: object, name: str = "calc_score") -> str:
    quoted = f'"{answer}"' if isinstance(answer, str) else answer
    return f'Let me see. <tool_call>{{"name": "{name}", "arguments": {{"answer": {quoted}}}}}</tool_call>'


texts = st.sampled_from([call("12"), call(12), call(13), r"\boxed{12}", r"\boxed{13}", "hm", call(12, "add")])


async def step(env: GeoMultiTurn, text: str):
    try:
        observation, done, info = await env.step(text)
    except ActionError as error:
        return str(error), False, error.reward
    return observation.get("obs_str", ""), done, info["reward"]


async def test_wrong_then_right_then_final() -> None:
    env = GeoMultiTurn("12", max_turns=4)
    await env.reset()
    said, done, reward = await step(env, call(13))
    assert said == "calc_score: 13 is wrong: think again and try another answer."
    assert (done, reward) == (False, 0.0)
    said, done, reward = await step(env, call("12.0 cm", "calc_geo3k_reward"))
    assert said.startswith("calc_score: 12.0 cm is right:")
    assert (done, reward) == (False, 1.0)
    assert await step(env, r"So it is \boxed{12}.") == ("", True, 0.0)


async def test_the_last_answer_counts() -> None:
    env = GeoMultiTurn("12")
    assert (await step(env, call(12)))[2] == 1.0
    assert await step(env, r"<think>\boxed{12}</think>No, \boxed{13}") == ("", True, -1.0)


async def test_the_last_turn_is_announced() -> None:
    env = GeoMultiTurn("12", max_turns=3)
    assert "last turn" not in (await step(env, call(1)))[0]
    assert "This is your last turn" in (await step(env, "hm"))[0]


@pytest.mark.parametrize(
    "text",
    [
        "I do not know.",
        call(12, "add"),
        "<tool_call>12</tool_call>",
        '<tool_call>{"name": "calc_score", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "calc_score", "arguments": {"answer": " "}}</tool_call>',
        '<tool_call>{"name": "calc_score", "arguments": {"answer": [12]}}</tool_call>',
        "<think>12</think> hm",
    ],
)
async def test_a_text_without_an_answer_is_the_models_mistake(text: str) -> None:
    with pytest.raises(ActionError, match=r"There is no answer. Check one by <tool_call>"):
        await GeoMultiTurn("12").step(text)


@pytest.mark.parametrize(("text", "reward"), [(r"it is \boxed{12}, because", 1.0), ("it is 12, because", None)])
async def test_only_a_boxed_answer_counts_in_a_response_that_was_cut(text: str, reward: float | None) -> None:
    assert (await GeoMultiTurn("12").cut(text)).get("reward") == reward


@given(said=st.lists(texts, min_size=2, max_size=6), cut=st.integers(0, 5))
async def test_a_loaded_snapshot_goes_on_like_the_original(said: list[str], cut: int) -> None:
    whole, copy = (GeoMultiTurn("12", max_turns=4) for _ in range(2))
    assert resume_class(whole) is ResumeClass.SNAPSHOT
    total = 0.0
    for text in said[:cut]:
        total += (await step(whole, text))[2]
        assert total in (0.0, 1.0)
    copy.load_state_dict(whole.state_dict())

    assert [await step(copy, text) for text in said[cut:]] == [await step(whole, text) for text in said[cut:]]


async def test_a_made_up_question_is_won_by_its_answer_and_shows_its_figure() -> None:
    for index in range(20):
        row = prompt(0, index, SimpleNamespace(figure=112))
        picture, text = row["prompt"][0]["content"]
        assert picture["image"].size == (112, 112)
        assert text["text"].endswith(("?", "."))
        env = build_env(EnvSample(row["prompt"], row["label"]), SimpleNamespace(max_turns=3))
        assert (await env.reset())[0] == {"obs_str": INSTRUCTION}
        assert (await step(env, rf"\boxed{{{row['label']}}}"))[1:] == (True, 1.0)


def test_questions_depend_on_seed_and_index_and_figures_can_be_blank() -> None:
    one, same, other, blank = (
        prompt(*place, SimpleNamespace(blank_observations=blank))
        for place, blank in (((0, 3), False), ((0, 3), False), ((1, 3), False), ((0, 3), True))
    )
    images = [row["prompt"][0]["content"][0]["image"].tobytes() for row in (one, same, other, blank)]
    assert images[0] == images[1] != images[2]
    assert set(images[3]) == {255}
    assert one["label"] == blank["label"]


@pytest.mark.parametrize("figure", [10, "224", 1.5])
def test_a_figure_that_cannot_be_read_is_refused(figure: object) -> None:
    with pytest.raises(EnvironmentLoadError, match=r"environment.args.figure=.* from 56"):
        prompt(0, 0, SimpleNamespace(figure=figure))


@pytest.mark.parametrize(
    "prompt",
    [
        "<image>Find x. Use calc_score.",
        [{"role": "user", "content": "calc_geo3k_reward checks."}],
        [{"role": "system", "content": None}, {"role": "user", "content": [{"type": "text", "text": "calc_score"}]}],
    ],
)
async def test_a_prompt_that_names_the_tool_needs_no_explanation(prompt: object) -> None:
    assert await build_env(EnvSample(prompt, "12")).reset() == ({}, {})


def test_rows_without_answers_are_refused() -> None:
    with pytest.raises(EnvironmentLoadError, match=r"data.label_field"):
        build_env(EnvSample("What is x?"))
