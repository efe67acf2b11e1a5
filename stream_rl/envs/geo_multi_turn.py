r"""Geometry questions with a figure, several tries, and a tool that says whether an answer is right.

    environment.args.figure   pixels a side of a figure, 224 unless given
    environment.args.blank_observations   gives white figures: what an agent reaches that does not look

Without `data.path` questions and figures are made up (geometry_figures.py). With it they come from rows as geo3k has
them: `images`, `problem` with an <image> mark, `answer`. A message that explains the tool follows a question whose text
does not name it. The model's turn is one of

    <tool_call>{"name": "calc_score", "arguments": {"answer": "12"}}</tool_call>   the next message says right or wrong
    ... \boxed{12}                                                                 the final answer: the episode ends

The reward of an episode is 1 if the last answer, checked or final, is right, else 0; a step's `info["reward"]` is what
it changes of that. `calc_geo3k_reward` is another name of the tool, and `args.max_turns` says when to warn that the
turns end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.envs.geometry_figures import question
from stream_rl.envs.math_answers import final_answer, same_answer
from stream_rl.envs.tool_calls import PARSERS, Parsed, ToolCall
from stream_rl.errors import ActionError, EnvironmentLoadError

__all__ = ["INSTRUCTION", "GeoMultiTurn", "build_env", "prompt"]

TOOLS = ("calc_score", "calc_geo3k_reward")
USAGE = '<tool_call>{"name": "calc_score", "arguments": {"answer": "YOUR ANSWER"}}</tool_call>'
INSTRUCTION = (
    f"Reason step by step. You may check an answer by writing {USAGE} and ending your turn; you are then told whether "
    r"it is right, and may try again. When you are sure, give the final answer as \boxed{YOUR ANSWER}, without a call."
)
LAST_TURN = r" This is your last turn: give your final answer as \boxed{YOUR ANSWER}."
SMALLEST = 56
THOUGHT_END = "</think>"


def prompt(seed: int, index: int, args: Any = None) -> dict[str, Any]:
    """The question with this index and its figure; the label is the answer."""
    side = getattr(args, "figure", 224)
    if not isinstance(side, int) or side < SMALLEST:
        raise EnvironmentLoadError(f"environment.args.figure={side!r} must be a whole number from {SMALLEST}")
    asked = question(f"geo_multi_turn {seed} {index}")
    image = asked.draw(side, blank=bool(getattr(args, "blank_observations", False)))
    content = [{"type": "image", "image": image}, {"type": "text", "text": asked.text}]
    return {"prompt": [{"role": "user", "content": content}], "label": asked.answer, "kind": asked.kind}


def build_env(
    sample: Any = None,
    args: Any = None,
    *,
    figure: int = 224,
    blank_observations: bool = False,
    **_: Any,
) -> GeoMultiTurn:
    """An episode whose right answer is `sample.label`; `figure` and `blank_observations` are for `prompt`."""
    if sample.label is None:
        raise EnvironmentLoadError("environment.path='geo_multi_turn' needs the answers: set data.label_field")
    explain = not any(tool in text for tool in TOOLS for text in _texts(sample.prompt))
    return GeoMultiTurn(str(sample.label), max_turns=getattr(args, "max_turns", None), explain=explain)


class GeoMultiTurn(BaseInteractionEnv):
    """One question. Async because a step takes microseconds: a thread would cost more than it."""

    def __init__(self, answer: str, *, max_turns: int | None = None, explain: bool = True) -> None:
        self._answer = answer
        self._explain = explain
        self._max_turns = max_turns
        self._turns = 0
        self._total = 0.0

    async def reset(self) -> tuple[Observation, Info]:
        """The question is the prompt; what is to be done with it may be left to say."""
        self._turns = 0
        self._total = 0.0
        return {"obs_str": INSTRUCTION} if self._explain else {}, {}

    async def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Checks an answer, or takes the final one. Raises ActionError for a text that has neither."""
        self._turns += 1
        calls = PARSERS["hermes"](response_text)
        answer = _checked(calls[-1]) if calls else final_answer(response_text.rpartition(THOUGHT_END)[2])
        if answer is None:
            raise ActionError(
                self._said(rf"There is no answer. Check one by {USAGE}, or end with \boxed{{YOUR ANSWER}}.")
            )
        right = same_answer(answer, self._answer)
        info = {"reward": self._reward(right), "answer": answer, "right": right}
        if not calls:
            return {}, True, info
        verdict = "right: now give it as your final answer." if right else "wrong: think again and try another answer."
        return {"obs_str": self._said(f"calc_score: {answer} is {verdict}")}, False, info

    async def cut(self, response_text: str) -> Info:
        r"""An answer in \boxed{} that was given before the cut counts."""
        answer = final_answer(response_text) if r"\boxed" in response_text else None
        return {} if answer is None else {"reward": self._reward(same_answer(answer, self._answer))}

    def state_dict(self) -> dict[str, Any]:
        """Everything but the answer, which is the sample's label."""
        return {"turns": self._turns, "total": self._total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._turns, self._total = int(state["turns"]), float(state["total"])

    def _said(self, text: str) -> str:
        return text + (LAST_TURN if self._max_turns is not None and self._turns == self._max_turns - 1 else "")

    def _reward(self, right: bool) -> float:
        change, self._total = float(right) - self._total, float(right)
        return change


def _texts(prompt: Any) -> Iterator[str]:
    """Every text of a prompt: itself, its messages' contents, their text parts."""
    for message in [{"content": prompt}] if isinstance(prompt, str) else prompt:
        content = message.get("content") or ""
        if isinstance(content, str):
            yield content
        else:
            yield from (str(part.get("text", "")) for part in content)


def _checked(call: Parsed) -> str | None:
    """The answer in a call of the tool; None if it is another call, or none."""
    if not isinstance(call, ToolCall) or call.name not in TOOLS:
        return None
    answer = call.arguments.get("answer")
    return str(answer).strip() or None if isinstance(answer, str | int | float) else None
