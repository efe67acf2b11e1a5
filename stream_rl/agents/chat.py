"""The model's chat form, as far as a loop may use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from stream_rl.envs.base import Message
from stream_rl.multimodal import Encoded
from stream_rl.sample import Int32

__all__ = ["Chat", "TemplateReport"]


class TemplateReport(Protocol):
    """What a chat template can do."""

    @property
    def refused(self) -> Mapping[str, str]:
        """The kinds of observations ("user", "tool", "tools") that it cannot take, and why."""

    @property
    def tools_shown(self) -> bool:
        """Whether its prompts show tools that it is given."""


class Chat(Protocol):
    """Texts and ids of conversations."""

    @property
    def report(self) -> TemplateReport:
        """What the template can do."""

    def showing(self, tools: Sequence[Mapping[str, Any]]) -> Chat:
        """The same with these tools for the template."""

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer."""

    def decode(self, ids: Int32, *, special: bool = False) -> str:
        """Text of ids, without special tokens unless asked for."""

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The template's text of a conversation."""

    async def show_prompt(self, messages: Sequence[Message]) -> Encoded:
        """Ids of a conversation up to the first generation, and its images. Raises ModelError and ImageError."""

    async def show_observation(self, messages: Sequence[Message], generated: Int32) -> Encoded:
        """Ids from the end of a generated turn up to the next generation, and the images. Raises as `show_prompt`."""

    def encode_prompt(self, messages: Sequence[Message]) -> Int32:
        """Ids of a conversation up to the first generation, int32 (p,). Raises as `show_prompt`."""

    def encode_observation(self, messages: Sequence[Message], generated: Int32) -> Int32:
        """Ids from the end of a generated turn up to the next generation, int32 (o,). Raises as `show_prompt`."""
