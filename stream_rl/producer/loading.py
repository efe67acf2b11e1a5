"""Everything that the episodes of a run share, loaded once a process; whatever the user got wrong is found here."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from stream_rl.agents.context import Surroundings
from stream_rl.agents.loading import MULTI_TURN_ENV, SINGLE_TURN, Agents
from stream_rl.config import Config, EnvironmentConfig, ModelConfig
from stream_rl.envs.base import EnvSample
from stream_rl.envs.loading import EnvironmentModule, load_environment
from stream_rl.errors import (
    ActionError,
    AgentLoadError,
    ConfigError,
    DataError,
    EnvFatalError,
    EnvInfraError,
    EnvironmentLoadError,
    ImageError,
    ModelError,
)
from stream_rl.multimodal import Encoded
from stream_rl.multimodal.eyes import has_images
from stream_rl.producer.agent_session import AgentSession
from stream_rl.producer.chat import ChatEncoder, load_chat_encoder
from stream_rl.producer.chat_probe import ProbeReport
from stream_rl.producer.env_processes import EnvProcesses
from stream_rl.producer.env_session import EnvSession, Session, Shown
from stream_rl.producer.env_threads import EnvThreads
from stream_rl.producer.prompts import DatasetPrompts, PromptRow, PromptSource, open_prompts
from stream_rl.producer.scoring import Reward, load_reward
from stream_rl.producer.template_check import check_role, check_template, check_tools
from stream_rl.producer.world_calls import WorldCalls
from stream_rl.slime.args import slime_args
from stream_rl.slime.function import function_loop
from stream_rl.slime.imports import allow_slime_imports

__all__ = ["Rollout", "check_rollout", "load_rollout", "load_vocab_size"]

logger = logging.getLogger(__name__)

LONGEST_TRIED = 16


@dataclass(frozen=True, slots=True)
class Rollout:
    """What every episode needs.

    args             what environments are built with: `environment.args`, `max_turns`, and slime's names of settings
    agents           the loops; a row's field `agent_name` says which
    sampling_params  what generations are sampled with, as loops are told
    """

    config: Config
    environment: EnvironmentModule
    args: SimpleNamespace
    chat: ChatEncoder
    prompts: PromptSource
    threads: EnvThreads
    agents: Agents
    reward: Reward | None = None
    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    processes: EnvProcesses | None = None

    def session(self, row: PromptRow) -> Session:
        """A new session with the row's environment or agent loop; not yet built. Raises AgentLoadError."""
        agent, timeout = self.agents.find(row.metadata.get("agent_name")), self.config.environment.step_timeout
        sample = EnvSample(row.prompt, row.label, row.metadata)
        if agent.make is None:
            # Processes time the calls where they run, without the wait for their turn.
            here = timeout if self.processes is None else math.inf
            return EnvSession(self.environment, sample, self.args, self.threads, here)
        messages = row.messages(self.config.data.system_prompt)
        call = WorldCalls(self.threads, timeout, passes=(ActionError,))
        around = Surroundings(sample, messages, self.args, self.sampling_params, self.chat, call)
        fields = {name: value for name, value in row.metadata.items() if name not in ("self", "sampling_params")}
        fields |= {"prompt": row.prompt, "raw_prompt": messages, "label": row.label}
        return AgentSession(agent.name, agent.make, around, fields, timeout)

    def close(self) -> None:
        """Ends the threads and processes of environments."""
        self.threads.close()
        if self.processes is not None:
            self.processes.close()

    async def show_prompt(self, row: PromptRow, first_observation: Shown = ()) -> Encoded:
        """A prompt and the first observation; an agent loop has them in ids already.

        Raises:
            DataError: the prompt alone leaves no room for a response within `rollout.max_context_len`.
            EnvFatalError: it leaves none with the first observation.
            ModelError: the chat template refuses the messages.
            ImageError: an image cannot be read; the message names the dataset's row that shows images.
        """
        if isinstance(first_observation, Encoded):
            shown = first_observation
        elif isinstance(first_observation, np.ndarray):
            shown = Encoded(first_observation)
        else:
            try:
                shown = await self.chat.show_prompt([*row.messages(self.config.data.system_prompt), *first_observation])
            except ImageError as error:
                if not _is_pictured(row):
                    raise
                raise ImageError(f"row {row.number} of data.path: {error}") from error
        if len(shown.tokens) >= self.config.rollout.max_context_len:
            await self._refuse_length(row, len(shown.tokens))
        return shown

    async def _refuse_length(self, row: PromptRow, length: int) -> None:
        """What an environment or a loop adds is its own episode's matter, unless the prompt is too long without it."""
        limit = self.config.rollout.max_context_len
        alone = len((await self.chat.show_prompt(row.messages(self.config.data.system_prompt))).tokens)
        if alone < limit:
            raise EnvFatalError(
                f"a prompt of {alone} tokens has {length} with what is shown first, which leaves no room within "
                f"rollout.max_context_len={limit}"
            )
        raise DataError(
            f"a prompt of {alone} tokens leaves no room within rollout.max_context_len={limit}: "
            f"raise it, or leave the prompt out ({str(row.prompt)[:60]!r})"
        )


def load_rollout(config: Config, *, held_out: bool = False) -> Rollout:
    """Loads the environment, tokenizer, prompts and reward function of a run.

    Raises:
        UserError: one of them cannot be used, or the chat template cannot be appended to and the run has many turns.
    """
    if config.environment.slime_imports:
        allow_slime_imports()
    agent = _default_agent(config, held_out=held_out)
    environment = load_environment(config.environment.path)
    if config.environment.path is None:  # its name is the label of metrics
        environment = replace(environment, name=re.split(r"[:.]", agent)[-1])
    if (processes := _processes(config.environment)) is not None:
        environment = replace(environment, build_env=processes.build_env)
    args = SimpleNamespace(**{**slime_args(config), **config.environment.args, "max_turns": config.rollout.max_turns})
    check_tools(config.model)
    chat = load_chat_encoder(config.model, config.multimodal)
    logger.info("%s", chat.report)
    check_template(config, chat.report)
    return Rollout(
        config=config,
        environment=environment,
        args=args,
        chat=chat,
        prompts=open_prompts(config, environment, args, held_out=held_out),
        threads=EnvThreads(config.environment.executor_threads),
        agents=Agents(config.rollout.agents, agent, function_loop),
        reward=load_reward(config.environment, chat),
        sampling_params=_sampling_params(config, held_out=held_out),
        processes=processes,
    )


def _processes(config: EnvironmentConfig) -> EnvProcesses | None:
    if config.executor != "processes" or config.path is None:
        return None
    return EnvProcesses(
        config.path,
        count=config.executor_processes,
        limit=config.executor_threads,
        timeout=config.step_timeout,
        slime_imports=config.slime_imports,
    )


def _sampling_params(config: Config, *, held_out: bool) -> dict[str, Any]:
    temperature = config.evaluation.temperature if held_out else config.rollout.temperature
    return {"temperature": temperature, "top_p": 1.0, "top_k": -1, "max_new_tokens": config.rollout.max_response_len}


def _default_agent(config: Config, *, held_out: bool) -> str:
    shipped = SINGLE_TURN if config.environment.path is None else MULTI_TURN_ENV
    trained = config.rollout.agent or shipped
    return (config.evaluation.agent or trained) if held_out else trained


def load_vocab_size(config: ModelConfig) -> int:
    """Rows of the model's embedding: ids beyond them would kill an engine. Raises ModelError."""
    from transformers import AutoConfig  # noqa: PLC0415 - seconds to import: only processes that need it pay

    try:
        return int(AutoConfig.from_pretrained(config.path).get_text_config().vocab_size)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"model.path={config.path!r} has no config that loads: {reason}") from error


async def check_rollout(config: Config) -> ProbeReport:
    """Tries what a run would do first: loads everything, builds an environment, encodes its prompt and the longest.

    Returns what the chat template can do.

    Raises:
        UserError: whatever of it does not work, named by its setting.
    """
    rollout = load_rollout(config)
    prompts = rollout.prompts
    try:
        for row in _first_rows(prompts):
            _check_agent(rollout, row)
            await _try(rollout, row)
        if config.evaluation.episodes:
            Agents(config.rollout.agents, _default_agent(config, held_out=True), function_loop).find(None)
    finally:
        rollout.close()
    for row in [*_pictured(prompts, sees=rollout.chat.eyes is not None), *prompts.longest(LONGEST_TRIED)]:
        try:
            await rollout.show_prompt(row)
        except ImageError as error:
            raise DataError(str(error)) from error
    return rollout.chat.report


def _first_rows(prompts: PromptSource) -> list[PromptRow]:
    """The first row of each agent loop that a dataset names, or the first prompt. Raises AgentLoadError."""
    return prompts.first_of_each("agent_name") if isinstance(prompts, DatasetPrompts) else [prompts.row(0)]


def _pictured(prompts: PromptSource, *, sees: bool) -> list[PromptRow]:
    """Looks through a dataset's images; its first row with any, for a model that does not see. Raises DataError."""
    if not isinstance(prompts, DatasetPrompts):
        return []
    prompts.check_marks()
    found = None if sees else prompts.first_with_images()
    return [] if found is None else [found]


def _check_agent(rollout: Rollout, row: PromptRow) -> None:
    """A loop must exist, and something must score it."""
    try:
        name = rollout.agents.find(row.metadata.get("agent_name")).name
    except AgentLoadError as error:
        where = "" if row.number is None else f"row {row.number} of data.path: "
        raise AgentLoadError(f"{where}{error}") from error
    if name == SINGLE_TURN and rollout.reward is None:
        raise ConfigError(
            "single_turn_agent is scored by a reward function: set environment.reward_path, or give the row another "
            "agent_name"
        )


async def _try(rollout: Rollout, row: PromptRow) -> None:
    session = rollout.session(row)
    try:
        await session.build()
        observation, _ = await session.reset()
        check_role(rollout.config, rollout.chat.report, observation)
        await rollout.show_prompt(row, observation)
    except (EnvInfraError, EnvFatalError) as error:
        if isinstance(error, ImageError) and _is_pictured(row):
            raise DataError(str(error)) from error
        path, agent = rollout.config.environment.path, rollout.agents.find(row.metadata.get("agent_name"))
        what = f"environment.path={path!r}" if agent.make is None else f"agent loop {agent.name!r}"
        raise EnvironmentLoadError(f"{what} does not start: {error}") from error
    finally:
        await session.close()


def _is_pictured(row: PromptRow) -> bool:
    """Whether a dataset's row shows images, so that what is wrong with one is likely its own."""
    return row.number is not None and has_images(row.messages())
