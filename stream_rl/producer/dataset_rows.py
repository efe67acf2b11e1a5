"""Rows of a dataset by number, without holding it: lines of a file by their offsets, Arrow tables mapped from disk.

data.path                          read as
---------------------------------  ---------------------------------------------------------------------------
rows.jsonl                         the file itself; one integer a line in memory
rows.parquet, a folder of Parquet  Arrow files that `datasets` writes once into its cache, then maps
a folder of save_to_disk           its own Arrow files, mapped
owner/name                         a dataset of the Hugging Face hub, through its cache
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from stream_rl.config import DataConfig
from stream_rl.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["MISSING", "Rows", "digest", "open_rows"]

MISSING = object()
"""What `column` gives for a row without that field."""
SECONDS_FOR_HUB = 5.0
ROWS_PER_BATCH = 1000
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


class Rows(Protocol):
    """A dataset's rows, numbered from 0; `files` hold their content, in order."""

    files: Sequence[str]

    def __len__(self) -> int:
        """How many."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        """One row. Raises DataError."""

    def column(self, name: str) -> Iterator[Any]:
        """One field of every row in order, MISSING where a row has none. Raises DataError."""

    def counts(self, name: str) -> Iterator[int]:
        """How many values one field of every row holds, in order: of a list its length, 0 of none. Raises DataError."""

    def place(self, number: int) -> str:
        """The row as a user finds it: its file, and its number from 1."""


def open_rows(data: DataConfig) -> Rows:
    """The rows of `data.path`. Raises DataError naming it."""
    assert data.path is not None
    path = Path(data.path)
    rows: Rows
    if path.suffix == ".jsonl" or (path.is_file() and path.suffix != ".parquet"):
        rows = JsonLineRows(path)
    elif path.exists() or path.suffix == ".parquet":
        rows = _local(path, data)
    else:
        rows = _from_hub(data)
    if not len(rows):
        raise DataError(f"data.path={data.path!r} has no rows")
    return rows


def digest(rows: Rows) -> str:
    """32 hex digits of what the rows' files hold; of the hub's files their addresses, which name the revision."""
    whole = hashlib.blake2b(digest_size=16)
    for file in rows.files:
        if "://" in file:
            whole.update(file.encode())
        else:
            with Path(file).open("rb") as content:
                whole.update(hashlib.file_digest(content, "blake2b").digest())
    return whole.hexdigest()


class JsonLineRows:
    """A .jsonl file; empty lines are no rows. Raises DataError when there is no such file."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(f"data.path={str(path)!r} is no file")
        if path.suffix != ".jsonl":
            raise DataError(
                f"data.path={str(path)!r} must end with .jsonl or .parquet, or be a folder of Parquet files"
            )
        self.files: Sequence[str] = (str(path),)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._starts, self._ends, self._lines = array("q"), array("q"), array("q")
        at = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    self._starts.append(at)
                    self._ends.append(at + len(line))
                    self._lines.append(number)
                at += len(line)

    def __del__(self) -> None:
        if (descriptor := getattr(self, "_descriptor", None)) is not None:
            os.close(descriptor)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> dict[str, Any]:
        start = self._starts[number]
        line = os.pread(self._descriptor, self._ends[number] - start, start)
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DataError(f"{self.place(number)} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{self.place(number)} must be an object")
        return row

    def column(self, name: str) -> Iterator[Any]:
        """See Rows."""
        for number in range(len(self)):
            yield self[number].get(name, MISSING)

    def counts(self, name: str) -> Iterator[int]:
        """See Rows."""
        for value in self.column(name):
            yield len(value) if isinstance(value, list) else int(value is not None and value is not MISSING)

    def place(self, number: int) -> str:
        """See Rows."""
        return f"line {self._lines[number]} of data.path={self.files[0]!r}"


class ArrowRows:
    """A dataset of the `datasets` library; `sources` are the files it was made from."""

    def __init__(self, dataset: Dataset, sources: Sequence[str], path: str) -> None:
        self.files = sources
        self._dataset = dataset
        self._path = path

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> dict[str, Any]:
        row: dict[str, Any] = self._dataset[number]
        return row

    def column(self, name: str) -> Iterator[Any]:
        """See Rows."""
        for batch in self._batches(name):
            yield from itertools.repeat(MISSING, len(self)) if batch is None else batch.to_pylist()

    def counts(self, name: str) -> Iterator[int]:
        """See Rows: what the values are is not read, images may be large."""
        import pyarrow.compute  # noqa: PLC0415 - as below

        for batch in self._batches(name):
            if batch is None:
                yield from itertools.repeat(0, len(self))
            elif pyarrow.types.is_list(batch.type) or pyarrow.types.is_large_list(batch.type):
                yield from pyarrow.compute.list_value_length(batch).fill_null(0).to_pylist()
            else:
                yield from map(int, batch.is_valid().to_pylist())

    def _batches(self, name: str) -> Iterator[Any]:
        """A column in Arrow's form, some rows after the other; None alone if there is none of that name."""
        if name not in self._dataset.column_names:
            yield None
            return
        for batch in self._dataset.select_columns([name]).with_format("arrow").iter(ROWS_PER_BATCH):
            yield batch.column(0)

    def place(self, number: int) -> str:
        """See Rows."""
        import pyarrow.parquet  # noqa: PLC0415 - slow to import: only runs with such a dataset pay

        before = 0
        for file in self.files if all(file.endswith(".parquet") and "://" not in file for file in self.files) else ():
            count = pyarrow.parquet.read_metadata(file).num_rows
            if number < before + count:
                return f"row {number - before + 1} of {file!r} (data.path={self._path!r})"
            before += count
        return f"row {number + 1} of data.path={self._path!r}"


def _local(path: Path, data: DataConfig) -> Rows:
    """A Parquet file, or a folder. Imports `datasets`, whose errors are of many kinds, all with one good line."""
    if path.suffix == ".parquet" and not path.is_dir():
        if not path.is_file():
            raise DataError(f"data.path={data.path!r} is no file")
        return _prepared("parquet", data, data_files={"train": [str(path)]}, split="train")
    import datasets  # noqa: PLC0415 - a second to import: only runs with such a dataset pay

    saved = path / data.split if (path / "dataset_dict.json").exists() else path
    if not (saved / "state.json").exists():
        if saved != path:
            known = ", ".join(sorted(part.name for part in path.iterdir() if part.is_dir()))
            raise DataError(f"data.split={data.split!r} is not in data.path={data.path!r}: it has {known}")
        return _prepared(str(path.absolute()), data, name=data.subset, split=data.split)
    try:
        dataset = datasets.load_from_disk(str(saved))
    except (OSError, ValueError) as error:
        raise _refusal(data, error) from error
    return ArrowRows(dataset, [file["filename"] for file in dataset.cache_files], str(path))


def _from_hub(data: DataConfig) -> Rows:
    assert data.path is not None
    import httpx  # noqa: PLC0415 - as above
    from huggingface_hub import HfApi, constants  # noqa: PLC0415 - as above

    if not _HUB_NAME.fullmatch(data.path):
        raise DataError(f"data.path={data.path!r} is no file, no folder, and no owner/name of a dataset on the hub")
    if not constants.HF_HUB_OFFLINE:  # `datasets` itself would try for half a minute
        try:
            HfApi().dataset_info(data.path, timeout=SECONDS_FOR_HUB)
        except (OSError, ValueError, httpx.HTTPError) as error:
            raise DataError(
                f"data.path={data.path!r} is no file or folder, and the Hugging Face hub does not give it "
                f"({_first_line(error)}); set HF_HUB_OFFLINE=1 to use what its cache holds"
            ) from error
    return _prepared(data.path, data, name=data.subset, split=data.split)


def _prepared(source: str, data: DataConfig, *, split: str, **options: Any) -> Rows:
    """What `datasets` makes of a source: Arrow files in its cache, made once and locked meanwhile."""
    import datasets  # noqa: PLC0415 - as above
    from datasets.exceptions import DatasetsError  # noqa: PLC0415 - as above

    assert data.path is not None
    datasets.disable_progress_bars()
    try:
        builder = datasets.load_dataset_builder(source, **options)
        files = [str(file) for file in builder.config.data_files[split]] if builder.config.data_files else [source]
        builder.download_and_prepare()
        return ArrowRows(builder.as_dataset(split), files, data.path)
    except KeyError as error:
        known = ", ".join(map(str, builder.config.data_files))
        raise DataError(f"data.split={split!r} is not in data.path={data.path!r}: it has {known}") from error
    except (OSError, ValueError, DatasetsError) as error:
        raise _refusal(data, error) from error


def _refusal(data: DataConfig, error: Exception) -> DataError:
    return DataError(f"data.path={data.path!r} cannot be read as a dataset: {_first_line(error.__cause__ or error)}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
