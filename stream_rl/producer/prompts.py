"""Which prompt has which index. A pure function of (settings, index), so that no crash, resume or second producer
changes it: the cursor lives in the buffer, and siblings of a group, which share an index, get the same row.

Index i of a dataset with n rows is row order(i // n)[i % n]: epoch i // n, shuffled by (seed, epoch).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_rl.config import Config, DataConfig
from stream_rl.envs.base import Message, is_message
from stream_rl.envs.loading import EnvironmentModule, PromptGenerator
from stream_rl.errors import DataError, UserError
from stream_rl.multimodal.eyes import has_images
from stream_rl.producer.dataset_rows import MISSING, Rows, digest, open_rows
from stream_rl.producer.prompt_images import IMAGE_MARK, marks_of, with_images
from stream_rl.producer.row_values import not_to_be_kept
from stream_rl.suggestion import did_you_mean

__all__ = ["DatasetPrompts", "PromptRow", "PromptSource", "open_prompts", "prompt_basis"]

logger = logging.getLogger(__name__)

Prompt = str | Sequence[Message]

FIRST_KNOWN = 64
"""Generated prompts that are looked at before a run: of what comes after them nothing is known."""
HELD_OUT = 0x5EED
"""Added to the seed for evaluation: another stream of the environment's prompts, another shuffle of a dataset."""


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt: text or chat messages, the label for the environment, and the row's other fields.

    number  of the dataset's row, from 1; None where the prompt is of no dataset, or of a journal
    """

    prompt: Prompt
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    number: int | None = None

    def messages(self, system_prompt: str | None = None) -> list[Message]:
        """The prompt as chat messages, with a system message in front if there is none."""
        if isinstance(self.prompt, str):
            messages: list[Message] = [{"role": "user", "content": self.prompt}]
        else:
            messages = list(self.prompt)
        if system_prompt is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system_prompt})
        return messages


class PromptSource:
    """`row(prompt_index)` for any index from 0."""

    def row(self, prompt_index: int) -> PromptRow:
        """The prompt with this index. Raises DataError."""
        raise NotImplementedError

    def longest(self, count: int) -> list[PromptRow]:
        """The `count` prompts, of those that are known before a run, that are written longest. Raises DataError."""
        raise NotImplementedError


class GeneratedPrompts(PromptSource):
    """Prompts that the environment makes up, without end. `needed`: what a run takes of them if it loses none."""

    def __init__(self, generate: PromptGenerator, seed: int, args: SimpleNamespace, needed: int = FIRST_KNOWN) -> None:
        self._generate = generate
        self._seed = seed
        self._args = args
        self._known = min(needed, FIRST_KNOWN)

    def longest(self, count: int) -> list[PromptRow]:
        """Of the first FIRST_KNOWN, or of those that the run needs where they are fewer."""
        rows = [self.row(prompt_index) for prompt_index in range(self._known)]
        return sorted(rows, key=lambda row: -len(str(row.prompt)))[:count]

    def row(self, prompt_index: int) -> PromptRow:
        """The environment's prompt with this index. Raises DataError when it gives none."""
        where = f"prompt({self._seed}, {prompt_index}, args) of the environment"
        try:
            made = dict(self._generate(self._seed, prompt_index, self._args))
        except UserError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise DataError(f"{where} fails: {type(error).__name__}: {error}") from error
        if not _is_prompt(made.get("prompt")):
            raise DataError(
                f"{where} must give a 'prompt' that is text or chat messages, not {made.get('prompt')!r:.80}"
            )
        prompt = made.pop("prompt")
        if (reason := not_to_be_kept(made)) is not None:
            raise DataError(f"{where}: {reason}")
        return PromptRow(prompt, made.pop("label", None), made)


class DatasetPrompts(PromptSource):
    """Rows of a dataset, epoch after epoch. Looks at every prompt once and keeps its length: 8 bytes a row.

    Raises:
        DataError: a row has no prompt in `data.prompt_field`, or none has a field `data.image_field`; the message names
            file, row, field and the nearest field.
    """

    def __init__(self, rows: Rows, config: DataConfig, seed: int) -> None:
        self._rows = rows
        self._config = config
        self._seed = seed
        self._folder = Path(config.path or "").parent
        self._marked = 0
        self._first_marked = -1
        self._lengths = np.fromiter(self._checked_lengths(), np.int64, len(rows))
        self._check_images()
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, np.int64))

    def longest(self, count: int) -> list[PromptRow]:
        """Of all rows: where a prompt is too long, one of these is."""
        return [self._row(int(number)) for number in np.argsort(-self._lengths, kind="stable")[:count]]

    def first_of_each(self, name: str) -> list[PromptRow]:
        """The first row with each value of a field; without it is a value too. Raises DataError."""
        firsts: dict[str, int] = {}
        for number, value in enumerate(self._rows.column(name)):
            firsts.setdefault(repr(value), number)
        return [self._row(number) for number in firsts.values()]

    def first_with_images(self) -> PromptRow | None:
        """The first row that shows any, in its messages or in `data.image_field`. Raises DataError."""
        for number, prompt, images in self._prompts_and_images():
            if images or (isinstance(prompt, list) and has_images(prompt)):
                return self._row(number)
        return None

    def check_marks(self) -> None:
        """Whether every row has as many images as marks, or no mark. Raises DataError with the first that has not."""
        for number, prompt, images in self._prompts_and_images() if self._config.image_field else ():
            if marks_of(prompt) not in (0, images):
                self._row(number)

    def row(self, prompt_index: int) -> PromptRow:
        """The row with this index. Raises DataError: it has other images than marks, or what no record can hold."""
        epoch, place = divmod(prompt_index, len(self._rows))
        return self._row(int(self._epoch_order(epoch)[place]) if self._config.shuffle else place)

    def _row(self, number: int) -> PromptRow:
        fields = dict(self._rows[number])
        prompt = _without_nulls(fields.pop(self._config.prompt_field))
        if (name := self._config.image_field) is not None:
            prompt = with_images(prompt, fields.pop(name, None), self._rows.place(number), self._folder)
        if (reason := not_to_be_kept(fields)) is not None:
            raise DataError(f"{self._rows.place(number)}: {reason}")
        return PromptRow(prompt, fields.pop(self._config.label_field, None), fields, number + 1)

    def _prompts_and_images(self) -> Iterator[tuple[int, Any, int]]:
        """Of every row its number, its prompt, and how many images it has in `data.image_field`."""
        name = self._config.image_field
        counts = itertools.repeat(0) if name is None else self._rows.counts(name)
        for number, prompt in enumerate(self._rows.column(self._config.prompt_field)):
            yield number, _without_nulls(prompt), next(counts)

    def _checked_lengths(self) -> Iterator[int]:
        name = self._config.prompt_field
        for number, prompt in enumerate(self._rows.column(name)):
            if not _is_prompt(_without_nulls(prompt)):
                raise DataError(self._what_is_wrong(number, prompt))
            if IMAGE_MARK in (text := str(prompt)):
                self._marked += 1
                self._first_marked = number if self._marked == 1 else self._first_marked
            yield len(text)

    def _check_images(self) -> None:
        """Marks without a field of images, or such a field that no row has: the model would not see its images."""
        name, rows = self._config.image_field, self._rows
        if name is None:
            if self._marked:
                logger.warning(
                    "%d of %d prompts have the mark %s, the first in %s, and data.image_field is not set: it is text; "
                    "if images belong there, name the rows' field with them",
                    self._marked, len(rows), IMAGE_MARK, rows.place(self._first_marked),
                )  # fmt: skip
        elif name not in rows[0] and all(value is MISSING for value in rows.column(name)):
            hint = did_you_mean(name, rows[0], "no field is like it", likeness=0.0)
            raise DataError(f"no row of data.path={self._config.path!r} has a field data.image_field={name!r}: {hint}")

    def _what_is_wrong(self, number: int, prompt: Any) -> str:
        name, place = self._config.prompt_field, self._rows.place(number)
        if prompt is not MISSING:
            return f"{place}: field {name!r} must be text or a list of chat messages"
        hint = did_you_mean(name, self._rows[number], "the row is empty", likeness=0.0)
        return f"{place} has no field data.prompt_field={name!r}: {hint}"

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng((self._seed, epoch)).permutation(len(self._rows)))
        return self._order[1]


def open_prompts(
    config: Config, environment: EnvironmentModule, args: SimpleNamespace, *, held_out: bool = False
) -> PromptSource:
    """The prompts of a run, or the held-out ones that evaluation uses.

    Raises:
        DataError: no dataset where one is needed, the file cannot be read, or a row has no prompt.
    """
    seed = config.seed + (HELD_OUT if held_out else 0)
    if config.data.path is not None:
        return DatasetPrompts(open_rows(config.data), config.data, seed)
    if environment.prompt is None:
        raise DataError(f"environment {environment.name!r} makes no prompts of its own: set data.path to a dataset")
    needed = config.trainer.steps * config.rollout.groups_per_step
    return GeneratedPrompts(environment.prompt, seed, args, needed)


def prompt_basis(config: Config) -> dict[str, Any]:
    """What a run's prompts and their numbers rest on, setting -> JSON value: it must stay while the run goes on.

    Reads the dataset's files whole, a second or so for each GB. Raises DataError.
    """
    basis: dict[str, Any] = {
        "seed": config.seed,
        "rollout.groups_per_step": config.rollout.groups_per_step,
        "rollout.group_size": config.rollout.group_size,
        "data.path": None,
    }
    if config.data.path is not None:
        rows = open_rows(config.data)
        basis["data.path"] = {"rows": len(rows), "digest": digest(rows)}
        basis |= {"data.prompt_field": config.data.prompt_field, "data.shuffle": config.data.shuffle}
    return basis


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return bool(prompt)
    return isinstance(prompt, list) and bool(prompt) and all(map(_is_message, prompt))


def _is_message(message: Any) -> bool:
    if is_message(message):
        return True
    # An answer that only calls tools has no content.
    called = isinstance(message, Mapping) and isinstance(message.get("role"), str) and "tool_calls" in message
    return called and message.get("content") is None


def _without_nulls(prompt: Any) -> Any:
    """Chat messages without what stands in them as null: a table gives each row's messages and parts the fields of all
    others, and templates ask whether a field is there. The content of an answer that only calls tools stays null."""
    if not isinstance(prompt, list):
        return prompt
    return [_message(message) if isinstance(message, Mapping) else message for message in prompt]


def _message(message: Message) -> Message:
    content = message.get("content")
    kept = _set(message)
    if isinstance(content, list):
        kept["content"] = [_set(part) if isinstance(part, Mapping) else part for part in content]
    elif content is None and "content" in message:
        kept["content"] = None
    return kept


def _set(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
