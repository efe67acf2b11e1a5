"""`tool_agent`: the model calls tools, reads what they say, and ends the episode with an answer without a call.

    generate ──► calls ──► all at the same time ──► one tool message each ──► generate ...
        └────► no call: the plain answer ends the episode

Its settings are `environment.args.tool_agent`, a `ToolAgentSettings`. It comes back as its tools do: of tools that keep
nothing the results are recorded with each turn's commit, and no call of a committed turn is made again; tools with a
state bring it back in their own way. A call whose process dies before the commit is made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stream_rl.agents import AgentContext, AgentLoop, Answer
from stream_rl.envs.base import Message, ResumeClass
from stream_rl.envs.tool_calls import PARSERS, Parsed
from stream_rl.errors import ModelError
from stream_rl.tools.session import ToolAnswer, ToolSession
from stream_rl.tools.toolbox import load_toolbox

__all__ = ["SETTING", "ToolAgent"]

SETTING = "environment.args.tool_agent"


class ToolAgent(AgentLoop):
    """The loop of one sample."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._toolbox = load_toolbox(getattr(context.args, "tool_agent", None), SETTING)
        self._session = ToolSession(self._toolbox, context)
        self._state: Mapping[str, Any] | None = None
        self.deterministic = self._toolbox.resume is ResumeClass.REPLAY
        if self._toolbox.resume is ResumeClass.SNAPSHOT:
            self.state_dict, self.load_state_dict = self._session.state_dict, self._keep

    def _keep(self, state: Mapping[str, Any]) -> None:
        self._state = state

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> None:
        """See AgentLoop. Raises ModelError where the chat template does not show the tools."""
        try:
            await self._session.open()
            self._show_tools()
            if self._state is not None:
                self._session.load_state_dict(self._state)
            while calls := self._calls(await self.context.generate()):
                self._observe(await self._session.answer(calls))
        finally:
            await self._session.release()

    def _show_tools(self) -> None:
        if self._toolbox.settings.shown_by == "prompt":
            return
        self.context.show_tools(self._session.schemas)
        if not self.context.chat.report.tools_shown:
            raise ModelError(
                f"the chat template does not show tools to the model: describe them in the prompt (data.system_prompt) "
                f"and set {SETTING}.shown_by=prompt, or set model.chat_template to one that shows them"
            )

    def _calls(self, answer: Answer) -> Sequence[Parsed]:
        """What is called; nothing by an answer that was cut, which is no action."""
        if answer.finish_reason == "length":
            return ()
        # Marks of calls are special tokens of some models.
        text = self.context.decode(answer.tokens[:-1], special=True)
        return PARSERS[self._toolbox.settings.parser](text)

    def _observe(self, answers: Sequence[ToolAnswer]) -> None:
        for answer in answers:
            if answer.reward:
                self.context.reward(answer.reward)
            if answer.mistaken:
                self.context.parse_failure()
        kind = "tool" if len(answers) == 1 else "tools"
        refused = kind in self.context.chat.report.refused
        self.context.observe(*(_as_user(answers) if refused else _as_tools(answers)))


def _as_tools(answers: Sequence[ToolAnswer]) -> list[Message]:
    """One message of the template's own tool role for each answer."""
    return [
        {"role": "tool", "name": answer.name or "tool", "tool_call_id": f"call{number:05d}", "content": answer.text}
        for number, answer in enumerate(answers)
    ]


def _as_user(answers: Sequence[ToolAnswer]) -> list[Message]:
    """One user message, for templates that have no tool role, or none that can be appended."""
    return [{"role": "user", "content": "\n".join(f"<tool_response>\n{a.text}\n</tool_response>" for a in answers)}]
