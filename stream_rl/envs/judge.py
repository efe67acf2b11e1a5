"""Another environment, or a plain question, whose reward or feedback a language model gives: an LLM as judge.

    environment.args.judge             where the judge is, what it is asked, and what becomes of its answer
    environment.args.environment       the environment to judge; without one, an episode is one answer to its prompt
    environment.args.environment_args  that environment's own settings

Every action is judged. With `gives: reward` the episode's reward is the newest score, from 0 to 1: each step gives what
it changes, so that the sum over the turns is right wherever the episode ends. With `gives: feedback` the model reads
the judge's words, and the environment's rewards stay. `both` does both; without an environment the model then tries
again until `pass_score`. What the judge fails to say is the world's fault: it is asked again, and never scored.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import string
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from pydantic import Field, field_validator

from stream_rl.envs.base import BaseInteractionEnv, Info, Observation, ResumeClass, format_observation, resume_class
from stream_rl.envs.judge_client import EndpointSettings, JudgeClient, Unanswered
from stream_rl.envs.loading import EnvironmentModule, load_environment
from stream_rl.errors import ActionError, ConfigError, EnvironmentLoadError

__all__ = ["JudgeSettings", "Judged", "build_env", "prompt"]

Stepped = tuple[Observation, bool, Info]

QUESTION = """Task:
$prompt

Reference answer, if there is one:
$label

Response to judge:
$response

Say in one sentence what is right or wrong with the response. Then write a last line with nothing but a score from 0 \
(useless) to 10 (perfect), like this:
Score: 5"""
FIELDS = frozenset(("prompt", "label", "response", "observation"))
SCORE = re.compile(r"score(?:\s*\([^)]*\))?[\s:=*]{0,6}(-?\d+(?:\.\d+)?)", re.IGNORECASE)


class JudgeSettings(EndpointSettings):
    """`environment.args.judge`: the endpoint, the question, and what becomes of the answer."""

    gives: Literal["reward", "feedback", "both"] = "reward"
    """What the judge's answer is used for."""
    question: str = QUESTION
    """What the judge is asked, with `$prompt`, `$label`, `$response` and `$observation` (the environment's answer)."""
    system_prompt: str | None = None
    """A system message before the question."""
    best_score: float = Field(10.0, gt=0)
    """The score that counts as 1; scores run from 0 to it. Others are no answer."""
    pass_score: float = Field(1.0, ge=0, le=1)
    """Of `both` without an environment: the score, from 0 to 1, that ends the episode."""

    @field_validator("question")
    @classmethod
    def _has_known_fields(cls, question: str) -> str:
        template = string.Template(question)
        if not template.is_valid() or (unknown := set(template.get_identifiers()) - FIELDS):
            named = f"${min(unknown)}" if template.is_valid() else "a $ that names none (write $$)"
            raise ValueError(f"{named} is no field of a question; there are ${', $'.join(sorted(FIELDS))}")
        return question


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge said: its words without thoughts and score, and the score, None where it gave none."""

    words: str
    score: float | None


def prompt(seed: int, index: int, args: Any) -> Mapping[str, Any]:
    """The prompt of the environment that is judged."""
    inner = _inner(getattr(args, "environment", None))
    if inner is None or inner.prompt is None:
        raise EnvironmentLoadError("environment.path='judge' has no prompts of its own: set data.path")
    return inner.prompt(seed, index, _inner_args(getattr(args, "environment_args", None), args))


def build_env(
    sample: Any = None,
    args: Any = None,
    *,
    judge: Any = None,
    environment: str | None = None,
    environment_args: Mapping[str, Any] | None = None,
    **_: Any,
) -> Judged:
    """An episode whose steps are judged. Raises ConfigError or EnvironmentLoadError."""
    settings = JudgeSettings.within("environment.args.judge", judge or {})
    module = _inner(environment)
    if module is None and settings.gives == "feedback":
        raise ConfigError("environment.args.judge.gives=feedback needs an environment that gives rewards: name one")
    if module is None:
        return Judged(Asked(settings), settings, sample)
    named = _inner_args(environment_args, args)
    return Judged(module.build_env(sample=sample, args=named, **module.named(named)), settings, sample)


class Asked(BaseInteractionEnv):
    """No world at all: the prompt, and an answer to it. With `both` there are further tries."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._tries = settings.gives == "both"

    async def reset(self) -> tuple[Observation, Info]:
        """The question is the prompt."""
        return {}, {}

    async def step(self, response_text: str) -> Stepped:
        """Ends the episode, unless a better answer may follow."""
        return {}, not self._tries, {}

    async def cut(self, response_text: str) -> Info:
        """Leaves the score to the judge."""
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        """Nothing is kept."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is kept."""


class Judged:
    """An environment whose actions are judged. Each of its methods is sync where the inner one's is, else async."""

    def __init__(self, inner: Any, settings: JudgeSettings, sample: Any) -> None:
        self._inner = inner
        self._settings = settings
        self._sample = sample
        self._total = 0.0
        self._client = _client(settings.model_dump_json())
        self.reset = inner.reset
        self.step = self._after(inner.step, self._judge_step)
        self.cut = self._after(getattr(inner, "cut", _no_info), self._judge_cut)
        self.close = getattr(inner, "close", _no_info)
        self.format_observation = getattr(inner, "format_observation", format_observation)
        if resume_class(inner) is ResumeClass.SNAPSHOT:
            self.state_dict, self.load_state_dict = self._state, self._load_state

    def _after(self, method: Callable[..., Any], judge: Callable[[str, Any], Coroutine[Any, Any, Any]]) -> Any:
        """The method, and then the judge. A mistake of the model (ActionError) is not judged."""

        async def wait(response_text: str) -> Any:
            with self._mistakes():
                result = await method(response_text)
            return await judge(response_text, result)

        def work(response_text: str) -> Any:
            with self._mistakes():
                result = method(response_text)
            return self._client.run(judge(response_text, result))

        return wait if inspect.iscoroutinefunction(method) else work

    @contextlib.contextmanager
    def _mistakes(self) -> Iterator[None]:
        """Takes the environment's reward from a mistake where rewards are the judge's."""
        try:
            yield
        except ActionError as error:
            raise error if self._settings.gives == "feedback" else ActionError(str(error)) from error

    async def _judge_step(self, text: str, stepped: Stepped) -> Stepped:
        observation, done, info = stepped
        gives = self._settings.gives
        if done and gives == "feedback":
            return stepped
        verdict = await self._ask(text, observation)
        if gives != "feedback":
            info = self._scored(verdict, info)
        if gives != "reward":
            said = [str((observation or {}).get("obs_str") or ""), verdict.words]
            observation = {**(observation or {}), "obs_str": "\n".join(filter(None, said))}
        passed = isinstance(self._inner, Asked) and (verdict.score or 0.0) >= self._settings.pass_score
        return observation, bool(done or passed), info

    async def _judge_cut(self, text: str, info: Info) -> Info:
        return info if self._settings.gives == "feedback" else self._scored(await self._ask(text, {}), info)

    def _scored(self, verdict: Verdict, info: Info) -> Info:
        assert verdict.score is not None
        change, self._total = verdict.score - self._total, verdict.score
        return {**(info or {}), "reward": change, "judge_score": verdict.score}

    async def _ask(self, response: str, observation: Observation | None) -> Verdict:
        question = string.Template(self._settings.question).substitute(
            prompt=_text(self._sample.prompt),
            label="" if self._sample.label is None else str(self._sample.label),
            response=response,
            observation=str((observation or {}).get("obs_str") or ""),
        )
        system = self._settings.system_prompt
        messages = [{"role": "system", "content": system}] if system else []
        return await self._client.ask([*messages, {"role": "user", "content": question}])

    def _state(self) -> Mapping[str, Any]:
        return {"total": self._total, "environment": self._inner.state_dict()}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self._total = float(state["total"])
        self._inner.load_state_dict(state["environment"])


def _no_info(*_: Any) -> Info:
    return {}


def _read(settings: JudgeSettings, answer: str) -> Verdict:
    """Words and score of an answer. Raises Unanswered where what is wanted is missing."""
    said = answer.rpartition("</think>")[2].strip()
    found = list(SCORE.finditer(said))
    score = float(found[-1][1]) / settings.best_score if found else None
    words = said[: found[-1].start()].rstrip("*# \n") if found else said
    if settings.gives != "feedback" and (score is None or not 0 <= score <= 1):
        raise Unanswered(f"no score from 0 to {settings.best_score:g} in {answer[-100:]!r}")
    if settings.gives != "reward" and not words:
        raise Unanswered("no word of feedback")
    return Verdict(words, score)


@functools.lru_cache(maxsize=32)
def _client(settings: str) -> JudgeClient[Verdict]:
    """The process's client for these settings."""
    parsed = JudgeSettings.model_validate_json(settings)
    return JudgeClient(parsed, functools.partial(_read, parsed))


@functools.lru_cache(maxsize=32)
def _inner(path: str | None) -> EnvironmentModule | None:
    return None if path is None else load_environment(path)


def _inner_args(environment_args: Mapping[str, Any] | None, args: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**(environment_args or {}), "max_turns": getattr(args, "max_turns", None)})


def _text(prompt: Any) -> str:
    """A prompt as text, whether it is text or chat messages."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"{message['role']}: {_content(message.get('content'))}" for message in prompt)


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or ())
