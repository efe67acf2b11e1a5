"""The steps' figures for other programs: TensorBoard event files, and Weights & Biases when it is configured.

Event files are written here, without TensorBoard: a TFRecord (length, masked CRC-32C of it, bytes, masked CRC-32C of
them) around each protocol buffer `Event` with its wall time, step and scalars.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from stream_rl.config import Config
from stream_rl.errors import ConfigError

__all__ = ["StepSink", "TensorBoardSteps", "WandbSteps", "step_sinks"]

NOT_FIGURES = ("step", "time", "incarnation")


class StepSink(Protocol):
    """Takes lines of steps.jsonl, each step once and in order."""

    def write(self, step: Mapping[str, Any]) -> None:
        """One step."""

    def close(self) -> None:
        """No more steps."""


def step_sinks(config: Config) -> list[StepSink]:
    """What the settings ask for. Raises ConfigError when `metrics.wandb_project` is set and wandb is not installed."""
    sinks: list[StepSink] = []
    if config.metrics.tensorboard:
        sinks.append(TensorBoardSteps(config.folder / "tensorboard"))
    if config.metrics.wandb_project is not None:
        sinks.append(WandbSteps(config.metrics.wandb_project, config.name, config.model_dump(mode="json")))
    return sinks


def figures(step: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a step by name, those in mappings as `by_lag/0/tokens`; None, lists and texts are left out."""
    found: dict[str, float] = {}
    for name, value in step.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{inner}": number for inner, number in figures(value).items()}
        elif isinstance(value, int | float) and not isinstance(value, bool) and name not in NOT_FIGURES:
            found[name] = float(value)
    return found


class TensorBoardSteps:
    """One event file in a folder, written anew: a supervisor that is started again gives it all steps again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "events.out.tfevents.0.stream_rl").open("wb")
        self._put(_field(3, b"brain.Event:2"))

    def write(self, step: Mapping[str, Any]) -> None:
        """One event with every figure of the step."""
        values = b"".join(_field(1, _scalar(name, value)) for name, value in figures(step).items())
        self._put(_double(1, step["time"]) + _varint_field(2, step["step"]) + _field(5, values))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _put(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked_crc(length) + event + _masked_crc(event))
        self._file.flush()


class WandbSteps:
    """A run of a Weights & Biases project, by the run's name: resumed, it goes on.

    Raises:
        ConfigError: wandb is not installed.
    """

    def __init__(self, project: str, name: str, settings: Mapping[str, Any]) -> None:
        try:
            import wandb  # noqa: PLC0415 - nobody needs it who has not asked for it
        except ImportError as error:
            raise ConfigError(
                f"metrics.wandb_project={project!r} needs the package wandb: pip install wandb"
            ) from error
        self._run = wandb.init(project=project, id=name, name=name, config=dict(settings), resume="allow")

    def write(self, step: Mapping[str, Any]) -> None:
        """Logs every figure of the step."""
        self._run.log(figures(step), step=step["step"])

    def close(self) -> None:
        """Sends what has not been sent."""
        self._run.finish()


def _scalar(name: str, value: float) -> bytes:
    return _field(1, name.encode()) + b"\x15" + struct.pack("<f", value)


def _double(number: int, value: float) -> bytes:
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


def _varint_field(number: int, value: int) -> bytes:
    return bytes([number << 3]) + _varint(value)


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _table() -> Iterable[int]:
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        yield crc


_CRC = tuple(_table())


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
