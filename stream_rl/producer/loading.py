"""Everything that the episodes of a run share, loaded once a process; whatever the user got wrong is found here."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from stream_rl.config import Config, EnvironmentConfig, ModelConfig
from stream_rl.envs.base import EnvSample
from stream_rl.envs.loading import EnvironmentModule, load_environment
from stream_rl.errors import DataError, EnvFatalError, EnvInfraError, EnvironmentLoadError, ModelError
from stream_rl.producer.chat import ChatEncoder, load_chat_encoder
from stream_rl.producer.chat_probe import probe
from stream_rl.producer.env_processes import EnvProcesses
from stream_rl.producer.env_session import EnvSession
from stream_rl.producer.env_threads import EnvThreads
from stream_rl.producer.prompts import DatasetPrompts, PromptRow, PromptSource, open_prompts
from stream_rl.producer.scoring import RewardFunction, load_reward
from stream_rl.sample import Int32

__all__ = ["Rollout", "check_rollout", "load_rollout", "load_vocab_size"]

logger = logging.getLogger(__name__)

LONGEST_TRIED = 16


@dataclass(frozen=True, slots=True)
class Rollout:
    """What every episode needs. `args` is what environments are built with: `environment.args` and `max_turns`."""

    config: Config
    environment: EnvironmentModule
    args: SimpleNamespace
    chat: ChatEncoder
    prompts: PromptSource
    threads: EnvThreads
    reward: RewardFunction | None = None
    processes: EnvProcesses | None = None

    def session(self, row: PromptRow) -> EnvSession:
        """A new environment session for a prompt; not yet built."""
        sample = EnvSample(row.prompt, row.label, row.metadata)
        # Processes time the calls where they run, without the wait for their turn.
        timeout = self.config.environment.step_timeout if self.processes is None else math.inf
        return EnvSession(self.environment, sample, self.args, self.threads, timeout)

    def close(self) -> None:
        """Ends the threads and processes of environments."""
        self.threads.close()
        if self.processes is not None:
            self.processes.close()

    def encode_prompt(self, row: PromptRow, first_observation: object | None = None) -> Int32:
        """Ids of a prompt and the environment's first observation, int32 (p,).

        Raises:
            DataError: no room is left for a response within `rollout.max_context_len`.
            ModelError: the chat template refuses the messages.
        """
        messages = row.messages(self.config.data.system_prompt)
        if first_observation is not None:
            messages.append(first_observation)  # type: ignore[arg-type]
        tokens = self.chat.encode_prompt(messages)
        if len(tokens) >= (limit := self.config.rollout.max_context_len):
            raise DataError(
                f"a prompt of {len(tokens)} tokens leaves no room within rollout.max_context_len={limit}: "
                f"raise it, or leave the prompt out ({str(row.prompt)[:60]!r})"
            )
        return tokens


def load_rollout(config: Config, *, held_out: bool = False) -> Rollout:
    """Loads the environment, tokenizer, prompts and reward function of a run.

    Raises:
        UserError: one of them cannot be used, or the chat template cannot be appended to and the run has many turns.
    """
    environment = load_environment(config.environment.path)
    if (processes := _processes(config.environment)) is not None:
        environment = replace(environment, build_env=processes.build_env)
    args = SimpleNamespace(**{**config.environment.args, "max_turns": config.rollout.max_turns})
    chat = load_chat_encoder(config.model)
    report = probe(chat, _tools(config.model))
    logger.info("%s", report)
    if config.rollout.max_turns > 1 and (reason := report.refused.get("user")):
        raise ModelError(f"{reason} ({chat.name}): set model.chat_template to one that can, or rollout.max_turns to 1")
    return Rollout(
        config=config,
        environment=environment,
        args=args,
        chat=chat,
        prompts=open_prompts(config, environment, args, held_out=held_out),
        threads=EnvThreads(config.environment.executor_threads),
        reward=load_reward(config.environment.reward_path),
        processes=processes,
    )


def _processes(config: EnvironmentConfig) -> EnvProcesses | None:
    if config.executor != "processes":
        return None
    return EnvProcesses(
        config.path, count=config.executor_processes, limit=config.executor_threads, timeout=config.step_timeout
    )


def _tools(config: ModelConfig) -> Sequence[Mapping[str, Any]]:
    tools = config.template_args.get("tools") or ()
    try:
        return [tool for tool in tools if isinstance(tool["function"]["name"], str)]
    except (TypeError, KeyError) as error:
        raise ModelError(
            "model.template_args.tools must be a list of tool schemas, {type: function, function: {name: ...}}"
        ) from error


def load_vocab_size(config: ModelConfig) -> int:
    """Rows of the model's embedding: ids beyond them would kill an engine. Raises ModelError."""
    from transformers import AutoConfig  # noqa: PLC0415 - seconds to import: only processes that need it pay

    try:
        return int(AutoConfig.from_pretrained(config.path).get_text_config().vocab_size)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"model.path={config.path!r} has no config that loads: {reason}") from error


async def check_rollout(config: Config) -> None:
    """Tries what a run would do first: loads everything, builds an environment, encodes its prompt and the longest.

    Raises:
        UserError: whatever of it does not work, named by its setting.
    """
    rollout = load_rollout(config)
    row = rollout.prompts.row(0)
    session = rollout.session(row)
    try:
        await session.build()
        observation, _ = await session.reset()
        rollout.encode_prompt(row, observation)
    except (EnvInfraError, EnvFatalError) as error:
        raise EnvironmentLoadError(f"environment.path={config.environment.path!r} does not start: {error}") from error
    finally:
        await session.close()
        rollout.close()
    if isinstance(rollout.prompts, DatasetPrompts):
        for long in rollout.prompts.longest(LONGEST_TRIED):
            rollout.encode_prompt(long)
