"""What a world must offer to an agent: `reset`, `step`, `close`, and optionally a way to come back.

An environment module has `build_env(sample=None, args=None, **_)` that returns one environment for one episode.
Any object with these methods will do; `BaseInteractionEnv` only saves typing. Each method may be sync (it then runs
in a thread, so it may block) or async (it then runs in the event loop, so it must not).

    observation   a mapping: `obs_str` (text), optionally `role` ("user") and `multi_modal_data` ({"image": [...]})
    info          a mapping or None; of it `reward` is kept (float, step's, summed over the turns of an episode)
"""

from __future__ import annotations

import enum
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from stream_rl.envs.plain import is_unicode
from stream_rl.errors import ActionError, ImageError

__all__ = [
    "BaseInteractionEnv",
    "EnvSample",
    "Info",
    "Message",
    "Observation",
    "ResumeClass",
    "format_observation",
    "is_empty",
    "is_finite",
    "is_message",
    "mistakes_are_answers",
    "resume_class",
]

Observation = Mapping[str, Any]
Info = Mapping[str, Any]
Message = Mapping[str, Any]

IMAGES = ("image", "images")
"""Names of what is shown of `multi_modal_data`."""


class ResumeClass(enum.StrEnum):
    """How an environment comes back after its process died or a step failed."""

    SNAPSHOT = "snapshot"
    REPLAY = "replay"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class EnvSample:
    """What `build_env` is told about the sample it acts for."""

    prompt: Any
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class BaseInteractionEnv:
    """Base of an environment for one episode.

    An environment that also has `state_dict() -> mapping` (plain JSON values) and `load_state_dict(state)` resumes
    from a snapshot; `load_state_dict` is called on a freshly built environment, without `reset`. One that sets
    `deterministic = True` is resumed by playing its recorded actions again. Any other starts its episode again.
    """

    deterministic: bool = False
    """Equal actions give equal observations."""

    def reset(self) -> tuple[Observation, Info] | Awaitable[tuple[Observation, Info]]:
        """Starts the episode. An observation that is not empty becomes a message after the prompt."""
        raise NotImplementedError

    def step(self, response_text: str) -> tuple[Observation, bool, Info] | Awaitable[tuple[Observation, bool, Info]]:
        """Acts, and returns (observation, done, info).

        Raises:
            ActionError: the text is no action; the episode goes on with the error's message as observation.
            EnvInfraError: the world failed; the step is repeated after the state was restored.
            EnvFatalError: the episode cannot go on.
        """
        raise NotImplementedError

    def cut(self, response_text: str) -> Info | Awaitable[Info]:
        """Scores a last response that was cut by a length budget, by `info["reward"]`; the episode is over.

        A cut response is no action, so it is not stepped. Where an unfinished answer counts, score it here.
        """
        return {}

    def format_observation(self, observation: Observation) -> Message:
        """The chat message that shows an observation to the model."""
        return format_observation(observation)

    def close(self) -> Awaitable[None] | None:
        """Frees what the environment holds. Called once, also after failures."""
        return None


def format_observation(observation: Observation) -> Message:
    """A message of `obs_str` and the images of `multi_modal_data`, from `role` ("user" where none is given).

    The images are a list, or a single one, under `image` or, as some write it, `images`.

    Raises:
        ImageError: there is something else to show, which would be left out.
    """
    role = "user" if (named := observation.get("role")) is None else named
    text = "" if (said := observation.get("obs_str")) is None else str(said)
    text = text.encode(errors="replace").decode()  # half a surrogate pair can be written nowhere
    data = {} if _is_nothing(given := observation.get("multi_modal_data")) else given
    if not isinstance(data, Mapping) or not data.keys() <= set(IMAGES):
        raise ImageError(f"multi_modal_data may have images, a list under 'image' or 'images', not {given!r:.80}")
    images = [image for name in IMAGES for image in _listed(data.get(name))]
    if not images:
        return {"role": role, "content": text}
    parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    if text:
        parts.append({"type": "text", "text": text})
    return {"role": role, "content": parts}


def _listed(given: Any) -> Sequence[Any]:
    if given is None:
        return ()
    return given if isinstance(given, list | tuple) else (given,)


def mistakes_are_answers(
    call: Callable[[], Any], like: Callable[..., Any], then: Callable[[Any], Any] = lambda answer: answer
) -> Callable[[], Any]:
    """`then` of what `call` gives, where an ActionError is something that it gives: the model's mistake is no failure.

    Args:
        call: gives an awaitable when `like` is a coroutine function; the result is a coroutine function then, too.
    """

    async def wait() -> Any:
        try:
            answer = await call()
        except ActionError as error:
            answer = error
        return then(answer)

    def work() -> Any:
        try:
            answer = call()
        except ActionError as error:
            answer = error
        return then(answer)

    return wait if inspect.iscoroutinefunction(like) else work


def is_finite(value: object) -> TypeGuard[float]:
    """Whether this can be a reward: a number, and neither infinite nor NaN."""
    try:
        return isinstance(value, numbers.Real) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def is_message(message: object) -> TypeGuard[Message]:
    """Whether a chat template can show this: a mapping with a role, and with a content that is text or parts."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    return _is_text(content) or (isinstance(content, list | tuple) and all(map(_is_part, content)))


def _is_part(part: object) -> bool:
    return isinstance(part, Mapping) and _is_text(part.get("text", ""))


def _is_text(content: object) -> bool:
    return isinstance(content, str) and is_unicode(content)


def is_empty(observation: Observation | None) -> bool:
    """Whether there is nothing to show to the model."""
    return not observation or not (observation.get("obs_str") or not _is_nothing(observation.get("multi_modal_data")))


def _is_nothing(data: Any) -> bool:
    """Whether there is no image in what `multi_modal_data` holds: none, an empty list, or a mapping of such."""
    if isinstance(data, Mapping):
        return all(map(_is_nothing, data.values()))
    return data is None or (isinstance(data, list | tuple | str) and not data)


def resume_class(env: object) -> ResumeClass:
    """How this environment comes back, by what it implements."""
    if callable(getattr(env, "state_dict", None)) and callable(getattr(env, "load_state_dict", None)):
        return ResumeClass.SNAPSHOT
    return ResumeClass.REPLAY if getattr(env, "deterministic", False) else ResumeClass.RESTART
