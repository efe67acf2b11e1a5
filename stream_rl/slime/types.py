"""slime's `Sample`, by whose attributes users' functions read and write a trajectory."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stream_rl import sample as nouns
from stream_rl.errors import ConfigError

__all__ = ["Sample", "finished", "reward_value"]


@dataclass
class Sample:
    """One trajectory with slime's attributes.

    prompt             text, as the chat template renders it
    tokens             token ids of prompt and response
    response           text of the response, observations included, without special tokens
    loss_mask          1 where the model wrote the token
    reward             a number, or a mapping of which `environment.reward_key` picks one
    metadata           the row's other fields
    turns, stop_reason ours: every turn's own record and reward, and why the episode ended
    """

    class Status(enum.Enum):
        """What has become of a sample."""

        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    prompt: str | list[dict[str, Any]] = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None
    turns: Sequence[nouns.Turn] = ()
    stop_reason: nouns.StopReason | None = None

    def get_reward_value(self, args: Any) -> float:
        """The reward, or what `args.reward_key` picks of it. Raises ConfigError for what is neither."""
        return reward_value(self.reward, args.reward_key, "the sample's reward")

    @property
    def effective_response_length(self) -> int:
        """Response tokens that the model wrote."""
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length

    def append_response_tokens(
        self,
        args: Any = None,
        *,
        tokens: Sequence[int],
        log_probs: Sequence[float] | None = None,
        trainable: bool = True,
        meta_info: dict[str, Any] | None = None,
    ) -> None:
        """Adds tokens to the response: the model's (`trainable`), or an observation's."""
        tokens = list(tokens)
        self.tokens = [*self.tokens, *tokens]
        self.response_length += len(tokens)
        self.loss_mask = [*(self.loss_mask or ()), *[int(trainable)] * len(tokens)]
        self.rollout_log_probs = [*(self.rollout_log_probs or ()), *(log_probs or [0.0] * len(tokens))]
        if meta_info is not None:
            self.update_from_meta_info(args, meta_info)

    def update_from_meta_info(self, args: Any, meta_info: dict[str, Any]) -> None:
        """Takes the weight version and the status from what an engine answered."""
        if "weight_version" in meta_info:
            self.weight_versions.append(meta_info["weight_version"])
        ends = {"length": self.Status.TRUNCATED, "abort": self.Status.ABORTED, "stop": self.Status.COMPLETED}
        self.status = ends.get(meta_info["finish_reason"]["type"], self.status)


def reward_value(value: Any, key: str | None, whose: str) -> float:
    """A reward that a user's code gave: a number, or a mapping of which `environment.reward_key` picks one.

    Args:
        key: the setting.
        whose: what gave it, for messages.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(value, Mapping):
        if key not in value:
            known = ", ".join(map(str, value))
            raise ConfigError(f"environment.reward_key={key!r} is not in {whose}: name one of {known or 'its keys'}")
        value = value[key]
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        wanted = "a number, or a mapping of which environment.reward_key names one"
        raise ConfigError(f"{whose} must be {wanted}, not {value!r:.80} ({type(value).__name__})") from error


def finished(sample: nouns.Sample, prompt: str, response: str) -> Sample:
    """A finished sample of ours with slime's attributes; `prompt` and `response` are its texts."""
    return Sample(
        group_index=sample.group_index,
        index=sample.index,
        prompt=prompt,
        tokens=sample.tokens.tolist(),
        response=response,
        response_length=sample.response_length,
        label=sample.label,
        loss_mask=sample.loss_mask.tolist(),
        weight_versions=[str(span.version) for span in sample.weight_versions if span.version.step >= 0],
        rollout_log_probs=sample.rollout_log_probs.tolist(),
        status=Sample.Status(sample.status.value),
        metadata=dict(sample.metadata),
        session_id=sample.session_id,
        turns=sample.turns,
        stop_reason=sample.stop_reason,
    )
