"""The environment side of an episode: start, act under the retry budgets, and come back after a death or a failure.

An environment comes back by its resume class: `snapshot` loads the state that the last complete turn recorded,
`replay` plays the recorded actions again and compares what it sees with what was recorded, `restart` begins anew.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from stream_rl.agents.handover import Answer
from stream_rl.envs.base import ResumeClass
from stream_rl.errors import EnvFatalError, EnvInfraError
from stream_rl.metrics.tracing import annotate, spanned
from stream_rl.multimodal import Encoded
from stream_rl.producer.env_session import Shown, Step, show
from stream_rl.producer.loading import Rollout
from stream_rl.producer.prompts import PromptRow
from stream_rl.producer.retries import EnvRetries
from stream_rl.producer.scoring import score
from stream_rl.producer.turn_record import answer_of
from stream_rl.producer.world_calls import named_failures
from stream_rl.sample import Int32, Sample, Turn

__all__ = ["EpisodeEnv", "RestartNeeded"]

Result = TypeVar("Result")


class RestartNeeded(Exception):
    """The environment cannot come back to where the episode is: the episode begins again."""


class EpisodeEnv:
    """One sample's environment with its retries. All methods raise EnvFatalError when a budget is spent."""

    def __init__(self, rollout: Rollout, row: PromptRow, retries: EnvRetries) -> None:
        self.retries = retries
        self._rollout = rollout
        self._row = row
        self._session = rollout.session(row)
        self._first: Mapping[str, Any] | None = None

    async def start(self) -> Encoded:
        """Begins the episode; the prompt with the environment's first observation."""
        return await self._retried(self._begin)

    async def come_back(self, sample: Sample) -> ResumeClass:
        """Brings a new environment to where the sample is, and says how.

        Raises:
            RestartNeeded: its class is `restart`, or it recorded no state. The environment is unusable until `start`.
            EnvFatalError: it does not say again what it said before; the message shows both.
        """
        return await self._retried(lambda: self._restore(sample))

    @spanned("environment")
    async def step(self, answer: Answer, sample: Sample) -> Step:
        """Acts; after a failure the environment is brought back first. Raises RestartNeeded as `come_back`."""
        annotate({"input.value": answer.text})
        return await self._retried(lambda: self._session.step(answer), sample)

    async def cut(self, answer: Answer, sample: Sample) -> Step:
        """Scores a response that was cut. Raises as `step`."""
        return await self._retried(lambda: self._session.cut(answer), sample)

    async def score(self, sample: Sample) -> float:
        """The finished sample's reward; a reward function that fails is infrastructure too."""
        return await self._retried(lambda: self._score(sample))

    async def close(self) -> None:
        """Closes the environment."""
        await self._session.close()

    async def _retried(self, attempt: Callable[[], Awaitable[Result]], sample: Sample | None = None) -> Result:
        broken = False
        while True:
            try:
                if broken and sample is not None:
                    await self._restore(sample)
                return await attempt()
            except EnvInfraError as error:
                await self.retries.spend(error)
                broken = True

    async def _score(self, sample: Sample) -> float:
        rollout, seconds = self._rollout, self._rollout.config.environment.step_timeout
        try:
            async with asyncio.timeout(seconds):
                with named_failures(seconds):
                    return await score(sample, rollout.reward, rollout.args)
        except TimeoutError as error:
            raise EnvInfraError("the reward function exceeded environment.step_timeout", cause="timeout") from error
        except (EnvInfraError, EnvFatalError) as error:
            raise EnvInfraError(f"reward function: {error}", cause="reward") from error

    async def _begin(self) -> Encoded:
        await self._session.build()
        observation, self._first = await self._session.reset()
        return await self._rollout.show_prompt(self._row, observation)

    async def _restore(self, sample: Sample) -> ResumeClass:
        await self._session.build()
        how = self._session.resume_class
        turns = [turn for turn in sample.turns if turn.complete]
        self._session.recall([turn.environment for turn in turns])
        if how is ResumeClass.RESTART:
            raise RestartNeeded
        state = turns[-1].environment if turns else self._first
        if how is ResumeClass.SNAPSHOT and state is not None:
            await self._session.load_state(state)
        elif how is ResumeClass.SNAPSHOT and turns:
            raise RestartNeeded
        else:
            await self._replay(sample)
        return how

    async def _replay(self, sample: Sample) -> None:
        prompt = await self._begin()
        self._compare("reset", sample.prompt_tokens, sample.prompt_images, prompt)
        for index, pieces in itertools.groupby(sample.turns, key=lambda turn: turn.index):
            records = list(pieces)
            if records[-1].complete:
                await self._replay_turn(index, records)

    async def _replay_turn(self, index: int, records: list[Turn]) -> None:
        answer = answer_of(records, records[-1].action)
        step = await self._session.step(answer)
        seen = await self.show(step.observation, answer.tokens)
        self._compare(f"turn {index}", records[-1].observation, records[-1].images, seen)

    async def show(self, observation: Shown, generated: Int32) -> Encoded:
        """What stands between a turn and the next generation."""
        return await show(observation, generated, self._rollout.chat)

    def _compare(self, where: str, recorded: Int32, images: Sequence[str], seen: Encoded) -> None:
        if np.array_equal(recorded, seen.tokens):
            if list(images) == [picture.name for picture in seen.pictures]:
                return
            raise EnvFatalError(f"{where} of environment {self._rollout.environment.name!r} shows other images now")
        chat = self._rollout.chat
        raise EnvFatalError(
            f"{where} of environment {self._rollout.environment.name!r} is not what it was: "
            f"recorded {chat.decode(recorded, special=True)!r}, now {chat.decode(seen.tokens, special=True)!r}"
        )
