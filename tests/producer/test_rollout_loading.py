"""What a run would trip over is found before it starts: the loops that its rows name, and who scores them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rollouts import ScriptedEngines, play, replies

from stream_rl.errors import AgentLoadError, ConfigError, EnvironmentLoadError, ModelError
from stream_rl.producer.env_session import EnvSession
from stream_rl.producer.loading import check_rollout, load_rollout
from stream_rl.sample import StopReason


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    """`rows("a", None)`: the path of a dataset whose rows name these loops."""

    def write(*names: Any) -> str:
        path = tmp_path / "rows.jsonl"
        fields = [{"prompt": "guess", "label": 4, **({"agent_name": name} if name else {})} for name in names]
        path.write_text("".join(json.dumps(row) + "\n" for row in fields))
        return str(path)

    return write


SCORED = {"environment.reward_path": "scripted_env:reward"}


async def test_rows_may_mix_loops(config, rows) -> None:
    path = rows("single_turn_agent", None, "mine", "agent_loops:generate", "multi_turn_env")
    settings = {"rollout.agents": {"mine": "agent_loops:Guessing"}, "data.path": path, **SCORED}
    await check_rollout(config(**settings))
    loaded = load_rollout(config(**{**settings, "data.shuffle": False}))
    in_environment = [isinstance(loaded.session(loaded.prompts.row(number)), EnvSession) for number in range(5)]
    assert in_environment == [False, True, False, False, True]


async def test_a_name_that_is_none_is_refused_with_its_row_and_the_nearest(config, rows) -> None:
    settings = {"data.path": rows(None, "multi_turn_environment"), **SCORED}
    with pytest.raises(
        AgentLoadError, match=r"row 2 of data\.path: .* 'multi_turn_environment': did you mean 'multi_turn_env'\?"
    ):
        await check_rollout(config(**settings))


async def test_without_an_environment_one_answer_is_scored_by_a_function(config, rows) -> None:
    bare = {"environment": {}, "data.path": rows(None)}
    with pytest.raises(ConfigError, match=r"scored by a reward function: set environment\.reward_path"):
        await check_rollout(config(**bare))
    await check_rollout(config(**{**bare, "environment": {"reward_path": "scripted_env:reward"}}))
    assert load_rollout(config(**bare)).agents.default == "single_turn_agent"


async def test_the_environments_loop_needs_one(config, rows) -> None:
    settings = {"environment": {"reward_path": "scripted_env:reward"}, "data.path": rows("multi_turn_env")}
    with pytest.raises(EnvironmentLoadError, match=r"acts in an environment: set environment\.path"):
        await check_rollout(config(**settings))


async def test_a_loop_that_does_not_start_is_named(config) -> None:
    with pytest.raises(EnvironmentLoadError, match="agent loop 'agent_loops:Silent' does not start"):
        await check_rollout(config(**{"rollout.agent": "agent_loops:Silent"}))


def test_evaluation_may_have_a_loop_of_its_own(config) -> None:
    settings = {"rollout.agent": "agent_loops:Guessing", "evaluation.agent": "single_turn_agent"}
    assert load_rollout(config(**settings)).agents.default == "agent_loops:Guessing"
    assert load_rollout(config(**settings), held_out=True).agents.default == "single_turn_agent"
    del settings["evaluation.agent"]
    assert load_rollout(config(**settings), held_out=True).agents.default == "agent_loops:Guessing"


async def test_an_evaluation_loop_that_is_none_is_refused_too(config) -> None:
    with pytest.raises(AgentLoadError, match="did you mean 'single_turn_agent'"):
        await check_rollout(config(**{"evaluation.agent": "single_turn"}))


def test_args_have_the_settings_by_slimes_names_and_the_environments_own(config) -> None:
    args = load_rollout(config(**{"environment.args": {"backend": "local"}, "rollout.max_turns": 3})).args
    assert (args.max_turns, args.backend, args.n_samples_per_prompt, args.partial_rollout) == (3, "local", 2, False)


CHATML = "{{ m.role }}\n{{ m.content }}<|im_end|>\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
DROPS_TOOLS = "{% for m in messages if m.role != 'tool' %}<|im_start|>" + CHATML + "{% endfor %}" + PROMPT
RAISES_ON_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<|im_start|>"
    + CHATML + "{% endfor %}" + PROMPT
)  # fmt: skip


@pytest.fixture
def template(tmp_path: Path) -> Any:
    """`template(text)`: settings with this chat template."""

    def write(text: str) -> dict[str, Any]:
        (tmp_path / "chat.jinja").write_text(text)
        return {"model.chat_template": str(tmp_path / "chat.jinja")}

    return write


async def test_an_environment_that_begins_in_a_role_that_cannot_be_appended_is_refused(config, template) -> None:
    settings = {"environment.path": "tool_role_env", "environment.args": {"first": "higher"}}
    await check_rollout(config(**settings))
    with pytest.raises(EnvironmentLoadError, match=r"'tool_role_env' shows .* role 'tool', and .* drops observations"):
        await check_rollout(config(**settings, **template(DROPS_TOOLS)))


async def test_one_that_only_goes_on_so_fails_its_sample_by_name(rollout, template) -> None:
    settings = {"environment.path": "tool_role_env", "environment.args": {"first": ""}}
    loaded = rollout(**settings, **template(DROPS_TOOLS))
    sample, journal = await play(loaded, ScriptedEngines(replies("4 .")), row=loaded.prompts.row(0))
    assert journal.failure is not None
    assert sample.stop_reason is journal.failure[0] is StopReason.ENV_FAILURE
    assert "takes no observation of role 'tool'" in journal.failure[1]


async def test_what_the_template_can_do_is_told(config, template) -> None:
    report = await check_rollout(config(**template(DROPS_TOOLS)))
    assert str(report).endswith(
        ": usable observations: user; tools are not shown to the model; "
        "tool observations refused: the chat template drops observations of role 'tool' in silence; "
        "tools observations refused: the chat template drops observations of role 'tool' in silence"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data.system_prompt": "guess"}, r"data\.system_prompt cannot be used, the template raises 'no system'"),
        (
            {"model.template_args": {"tools": [{"type": "function", "function": {"name": "guess"}}]}},
            r"does not show model\.template_args\.tools to the model",
        ),
        (
            {"model.template_args": {"tools": [{"name": "guess"}]}},
            r"template_args\.tools must be a list of tool schemas",
        ),
    ],
)
def test_what_the_template_cannot_do_is_refused_where_the_settings_ask_for_it(
    config, template, settings, message
) -> None:
    load_rollout(config(**template(RAISES_ON_SYSTEM)))
    with pytest.raises(ModelError, match=message):
        load_rollout(config(**settings, **template(RAISES_ON_SYSTEM)))
