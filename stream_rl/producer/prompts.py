"""Which prompt has which index. A pure function of (settings, index), so that no crash, resume or second producer
changes it: the cursor lives in the buffer, and siblings of a group, which share an index, get the same row.

Index i of a dataset with n rows is row order(i // n)[i % n]: epoch i // n, shuffled by (seed, epoch).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson

from stream_rl.config import Config, DataConfig
from stream_rl.envs.base import Message
from stream_rl.envs.loading import EnvironmentModule, PromptGenerator
from stream_rl.errors import DataError, UserError

__all__ = ["PromptRow", "PromptSource", "open_prompts"]

Prompt = str | Sequence[Message]

HELD_OUT = 0x5EED
"""Added to the seed for evaluation: another stream of the environment's prompts, another shuffle of a dataset."""


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt: text or chat messages, the label for the environment, and the row's other fields."""

    prompt: Prompt
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

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


class GeneratedPrompts(PromptSource):
    """Prompts that the environment makes up, without end."""

    def __init__(self, generate: PromptGenerator, seed: int, args: SimpleNamespace) -> None:
        self._generate = generate
        self._seed = seed
        self._args = args

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
        return PromptRow(made.pop("prompt"), made.pop("label", None), made)


class DatasetPrompts(PromptSource):
    """Rows of a file, epoch after epoch.

    Raises:
        DataError: a row has no prompt in `data.prompt_field`; the message names row, field and the nearest one it has.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], config: DataConfig, seed: int) -> None:
        for number, row in enumerate(rows, 1):
            _check_prompt(row, number, config)
        self._rows = rows
        self._config = config
        self._seed = seed
        self._order: tuple[int, np.ndarray[Any, Any]] = (-1, np.zeros(0, np.int64))

    def longest(self, count: int) -> list[PromptRow]:
        """The `count` rows whose prompts are written longest: where one is too long, one of these is."""
        field = self._config.prompt_field
        chosen = sorted(range(len(self._rows)), key=lambda number: -len(str(self._rows[number][field])))[:count]
        return [self._row(number) for number in chosen]

    def row(self, prompt_index: int) -> PromptRow:
        """The row with this index."""
        epoch, place = divmod(prompt_index, len(self._rows))
        return self._row(int(self._epoch_order(epoch)[place]) if self._config.shuffle else place)

    def _row(self, number: int) -> PromptRow:
        fields = dict(self._rows[number])
        return PromptRow(
            fields.pop(self._config.prompt_field),
            fields.pop(self._config.label_field, None),
            {"row": number + 1, **fields},
        )

    def _epoch_order(self, epoch: int) -> np.ndarray[Any, Any]:
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
        return DatasetPrompts(read_rows(config.data.path), config.data, seed)
    if environment.prompt is None:
        raise DataError(f"environment {environment.name!r} makes no prompts of its own: set data.path to a dataset")
    return GeneratedPrompts(environment.prompt, seed, args)


def read_rows(path: str) -> list[dict[str, Any]]:
    """All rows of a .jsonl or .parquet file. Raises DataError naming data.path."""
    file = Path(path)
    if not file.is_file():
        raise DataError(f"data.path={path!r} is no file")
    if file.suffix == ".jsonl":
        rows = _read_jsonl(file)
    elif file.suffix == ".parquet":
        rows = _read_parquet(file)
    else:
        raise DataError(f"data.path={path!r} must end with .jsonl or .parquet")
    if not rows:
        raise DataError(f"data.path={path!r} has no rows")
    return rows


def _read_jsonl(file: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DataError(f"data.path={str(file)!r} line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"data.path={str(file)!r} line {number} must be an object")
        rows.append(row)
    return rows


def _read_parquet(file: Path) -> list[dict[str, Any]]:
    import pyarrow  # noqa: PLC0415 - slow to import: only runs with such a file pay
    import pyarrow.parquet  # noqa: PLC0415

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise DataError(f"data.path={str(file)!r} is no Parquet file: {error}") from error
    return rows


def _check_prompt(row: Mapping[str, Any], number: int, config: DataConfig) -> None:
    name = config.prompt_field
    if name not in row:
        near = difflib.get_close_matches(name, list(row), n=1, cutoff=0.0)
        hint = f"did you mean {near[0]!r}?" if near else "the row is empty"
        raise DataError(f"row {number} of data.path={config.path!r} has no field data.prompt_field={name!r}: {hint}")
    if not _is_prompt(row[name]):
        raise DataError(
            f"row {number} of data.path={config.path!r}: field {name!r} must be text or a list of chat messages"
        )


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return bool(prompt)
    return isinstance(prompt, list) and bool(prompt) and all(map(_is_message, prompt))


def _is_message(message: Any) -> bool:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    # An answer that only calls tools has no content.
    return isinstance(message.get("content"), str | list) or "tool_calls" in message
