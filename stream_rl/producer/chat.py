"""Chat messages to token ids and back. Generated ids are never re-encoded, replaced or re-ordered.

The ids of a conversation are: the prompt's encoding, then for every turn what the engine generated and, before the next
generation, the delta that `chat_delta` finds. A delta costs the same at turn 100 as at turn 1: it never sees the
conversation. Deltas of short observations are remembered, since environments repeat themselves. Control tokens that
content spells are plain text (`chat_content`).

Images are read before (`show_prompt`, `show_observation`): a template shows each as one placeholder, which is repeated
once the text is in ids, so that a delta is the same whatever its images show.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from stream_rl.config import ModelConfig, MultimodalConfig
from stream_rl.envs.base import Message
from stream_rl.errors import ImageError, ModelError
from stream_rl.metrics import catalog
from stream_rl.multimodal import Encoded, Picture
from stream_rl.multimodal.eyes import Eyes, has_images
from stream_rl.multimodal.family import load_family
from stream_rl.producer.chat_content import MARK, ControlTokens, control_spellings
from stream_rl.producer.chat_delta import SENTINEL, content_text, find_delta
from stream_rl.producer.chat_probe import ProbeReport, kind_of, probe
from stream_rl.sample import Int32

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatEncoder", "load_chat_encoder"]

REMEMBERED_DELTAS = 4096
REMEMBERED_CHARACTERS = 512
REMEMBERED_TOOL_SETS = 64
THREADED_CHARACTERS = 4096
"""Text that takes longer than 5 ms to encode, with real vocabularies: so long the event loop must not stand still."""


class _EncodedDelta(NamedTuple):
    """A delta in ids: the close (None: the rest opens with it), the rest, and whether content spelt control tokens."""

    close: int | None
    rest: Int32
    marked: bool


class ChatEncoder:
    """The chat form of one model.

    Args:
        tokenizer: with a chat template.
        stop_token_ids: ids that end a generation.
        template_args: further variables of the template; `tools` among them is the list of tool schemas.
        eyes: of a model that sees.

    Raises:
        ModelError: the tokenizer has no chat template, or no stop token is known.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop_token_ids: Sequence[int],
        template_args: Mapping[str, Any] | None = None,
        eyes: Eyes | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise ModelError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no chat template: "
                "set model.chat_template to a file with one"
            )
        if not stop_token_ids:
            raise ModelError(f"the tokenizer of {tokenizer.name_or_path!r} names no end token: set its eos_token")
        self.name = str(tokenizer.name_or_path)
        self.stop_token_ids = tuple(stop_token_ids)
        self.eyes = eyes
        self._tokenizer = tokenizer
        self._template_args = dict(template_args or {})
        self._stops = [str(stop) for stop in tokenizer.convert_ids_to_tokens(list(stop_token_ids))]
        self._remembered = functools.lru_cache(maxsize=REMEMBERED_DELTAS)(self._delta_of_json)
        self._with_tools = functools.lru_cache(maxsize=REMEMBERED_TOOL_SETS)(self._showing_json)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's own."""
        return self._tokenizer

    @property
    def stops(self) -> Sequence[str]:
        """Texts of the stop tokens."""
        return self._stops

    @functools.cached_property
    def report(self) -> ProbeReport:
        """What the template can do, tried once."""
        return probe(self, self._template_args.get("tools") or ())

    def showing(self, tools: Sequence[Mapping[str, Any]]) -> ChatEncoder:
        """The same with these tool schemas for the template; made once for each set of tools."""
        return self._with_tools(orjson.dumps(list(tools)))

    @property
    def forbidden(self) -> Sequence[int]:
        """Ids that the model must not write: they would be taken for images."""
        return () if self.eyes is None else self.eyes.family.forbidden

    async def show_prompt(self, messages: Sequence[Message]) -> Encoded:
        """A conversation up to the first generation, with its images. Raises as `encode_prompt`, and ImageError."""
        bare, pictures = await self._read(messages)
        return self._expanded(await _apart(self.encode_prompt, bare), pictures)

    async def show_observation(self, messages: Sequence[Message], generated: Int32) -> Encoded:
        """An observation with its images. Raises as `encode_observation`, and ImageError."""
        bare, pictures = await self._read(messages)
        return self._expanded(await _apart(self.encode_observation, bare, generated), pictures)

    def encode_prompt(self, messages: Sequence[Message]) -> Int32:
        """Ids of a conversation up to the first generation, int32 (p,), with one placeholder for each image.

        Raises ModelError where the template does, and ImageError for an image if the model reads text only.
        """
        self._refuse_images(messages)
        marked = self._control.mark(messages)
        if marked is not messages:
            catalog.CONTROL_TOKENS_READ_AS_TEXT.inc()
        try:
            return self._encode(self.render(marked, True), marked is not messages)
        except Exception as error:  # a template may raise anything
            raise ModelError(f"the chat template of {self.name!r} refuses the prompt: {error}") from error

    def encode_observation(self, messages: Sequence[Message], generated: Int32) -> Int32:
        """Ids from the end of a generated turn up to the next generation, int32 (o,); one placeholder for each image.

        Args:
            messages: the observation.
            generated: the turn's ids; whether they end with a stop token decides if the close is part of the answer.

        Raises:
            ModelError: this template cannot be appended to, with the reason.
            ImageError: there is an image, and the model reads text only.
        """
        if reason := self.report.refused.get(kind_of(messages)):
            raise ModelError(f"{self.name!r} takes no observation of role {messages[0]['role']!r}: {reason}")
        try:
            key = orjson.dumps(messages, default=str)
        except TypeError as error:
            raise ModelError(f"a message is no JSON: {error}") from error
        find = self._remembered if len(key) <= REMEMBERED_CHARACTERS else self._delta_of_json
        close, rest, marked = find(key)
        if marked:
            catalog.CONTROL_TOKENS_READ_AS_TEXT.inc()
        last = int(generated[-1]) if len(generated) else None
        ended = last in self.stop_token_ids
        if close is not None:
            return rest if ended else np.concatenate([np.array([close], np.int32), rest])
        if ended and rest[0] != last:
            raise ModelError(
                f"the chat template of {self.name!r} goes on with {self.decode(rest[:1], special=True)!r} "
                f"where the model stopped with {self.decode(generated[-1:], special=True)!r}"
            )
        return rest[1:] if ended else rest

    def check_delta(self, messages: Sequence[Message]) -> None:
        """Whether a template can be appended to at all, whatever its report says. Raises as `encode_observation`."""
        self._delta_of_json(orjson.dumps(messages))

    def decode(self, ids: Int32, *, special: bool = False) -> str:
        """Text of generated ids, without special tokens unless asked for."""
        text = self._tokenizer.decode(ids.tolist(), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The template's text of a conversation. Raises whatever the template raises."""
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **self._template_args,
        )
        assert isinstance(text, str)
        return text

    def _showing_json(self, tools: bytes) -> ChatEncoder:
        arguments = {**self._template_args, "tools": orjson.loads(tools)}
        return ChatEncoder(self._tokenizer, self.stop_token_ids, arguments, self.eyes)

    async def _read(self, messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Picture]]:
        self._refuse_images(messages)
        return (messages, ()) if self.eyes is None else await self.eyes.read(messages)

    def _expanded(self, ids: Int32, pictures: Sequence[Picture]) -> Encoded:
        return Encoded(ids if self.eyes is None else self.eyes.expand(ids, pictures), pictures)

    def _refuse_images(self, messages: Sequence[Message]) -> None:
        if self.eyes is None and has_images(messages):
            shown = next(content_text(message)[:40] for message in messages if has_images([message]))
            raise ImageError(f"a message ({shown!r}) has an image, and the model of model.path reads text only")

    @functools.cached_property
    def _control(self) -> ControlTokens:
        user, assistant = {"role": "user", "content": "a"}, {"role": "assistant", "content": SENTINEL}
        try:
            rendered = self.render([user, assistant, user], False)
        except Exception:  # a template may raise anything; `probe` says what that means
            rendered = ""
        return ControlTokens({*control_spellings(self._tokenizer, rendered), *self._stops})

    def _delta_of_json(self, key: bytes) -> _EncodedDelta:
        messages: list[Message] = orjson.loads(key)
        self._refuse_images(messages)
        shown = self._control.mark(messages)
        marked = shown is not messages
        close, text = find_delta(self.render, self._stops, shown)
        rest = self._encode(text, marked)
        if close is None:
            if not len(rest) or int(rest[0]) not in self.stop_token_ids:
                raise ModelError(f"the chat template of {self.name!r} has no stop token between the turns")
            return _EncodedDelta(None, rest, marked)
        closed = self._encode(close + text, marked)
        if len(closed) != len(rest) + 1 or not np.array_equal(closed[1:], rest):
            raise ModelError(f"the chat template of {self.name!r} closes turns with {close!r}, which is not one token")
        return _EncodedDelta(int(closed[0]), rest, marked)

    def _encode(self, text: str, marked: bool) -> Int32:
        pieces = text.split(MARK) if marked else [text]
        ids = [token for piece in pieces for token in self._tokenizer.encode(piece, add_special_tokens=False)]
        return np.array(ids, np.int32)


async def _apart(encode: Callable[..., Int32], messages: Sequence[Message], *generated: Int32) -> Int32:
    """Encodes messages, in a thread where there is much to encode."""
    if sum(len(content_text(message)) for message in messages) < THREADED_CHARACTERS:
        return encode(messages, *generated)
    return await asyncio.to_thread(encode, messages, *generated)


def load_chat_encoder(config: ModelConfig, multimodal: MultimodalConfig | None = None) -> ChatEncoder:
    """The chat form of the model at `model.path`, with the template file and arguments of the settings.

    Args:
        config: the model's.
        multimodal: for a model that sees; without it, images are refused.

    Raises:
        ModelError: no tokenizer there, no chat template, the template file cannot be read, or the model sees in a way
            that is not known.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds to import: only processes that encode pay

    try:
        tokenizer = AutoTokenizer.from_pretrained(config.path)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"model.path={config.path!r} has no tokenizer that loads: {reason}") from error
    if config.chat_template is not None:
        try:
            tokenizer.chat_template = Path(config.chat_template).read_text(encoding="utf-8")
        except OSError as error:
            raise ModelError(f"model.chat_template={config.chat_template!r}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ModelError(f"model.chat_template={config.chat_template!r} is no text: {error}") from error
    family = None if multimodal is None else load_family(config.path)
    eyes = None if family is None or multimodal is None else Eyes(family, multimodal)
    return ChatEncoder(tokenizer, stop_token_ids(tokenizer, config.path), config.template_args, eyes)


def stop_token_ids(tokenizer: PreTrainedTokenizerBase, path: str) -> tuple[int, ...]:
    """The tokenizer's end token and those of the model's generation config, without doubles."""
    from transformers import GenerationConfig  # noqa: PLC0415 - as above

    ids = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    try:
        more = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # the file is optional
        more = None
    ids += more if isinstance(more, list) else [more] if more is not None else []
    return tuple(dict.fromkeys(int(stop) for stop in ids))
