"""The files that `stream-rl export` writes, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import orjson

from stream_rl.metrics.turn_log import JsonLines

__all__ = ["open_writer"]

ROW_GROUP_BYTES = 32 * 2**20
"""Of arrays held in memory before they are written."""


class RowWriter(Protocol):
    """Takes rows one at a time."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds a row. Raises OSError when the file cannot be written."""


def open_writer(form: str, path: Path) -> AbstractContextManager[RowWriter]:
    """A new file at `path`: "jsonl" or "parquet". Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return JsonlWriter(path) if form == "jsonl" else ParquetWriter(path)


class JsonlWriter:
    """A JSON object a line; arrays are lists of numbers."""

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path)

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds a row."""
        self._lines.append(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()


class ParquetWriter:
    """One column a field; prompt, label and metadata are JSON text; row groups of about ROW_GROUP_BYTES."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet  # noqa: PLC0415 - slow to import: only this format pays

        self._schema = _schema()
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds a row."""
        texts = {name: orjson.dumps(row[name]).decode() for name in ("prompt", "label", "metadata") if name in row}
        self._rows.append({**row, **texts})
        self._bytes += 1000 + sum(value.nbytes for value in row.values() if isinstance(value, np.ndarray))
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow  # noqa: PLC0415 - as above

        columns = [pyarrow.array([row.get(field.name) for row in self._rows], field.type) for field in self._schema]
        self._writer.write_table(pyarrow.Table.from_arrays(columns, schema=self._schema))
        self._rows, self._bytes = [], 0


def _schema() -> Any:
    import pyarrow as pa  # noqa: PLC0415 - as above

    span = pa.struct([("start", pa.int32()), ("end", pa.int32()), ("version", pa.string())])
    kinds = {
        pa.bool_(): "held",
        pa.string(): "sample group_state state status stop_reason prompt label metadata",
        pa.int64(): "group index attempt step v0 prompt_index turns response_length generated prompt_length"
        " sampling_seed",
        pa.float64(): "reward temperature",
        pa.list_(pa.float64()): "turn_rewards",
        pa.list_(pa.int32()): "tokens",
        pa.list_(pa.uint8()): "loss_mask",
        pa.list_(pa.float32()): "rollout_log_probs",
        pa.list_(span): "weight_versions",
    }
    return pa.schema([(name, kind) for kind, names in kinds.items() for name in names.split()])
