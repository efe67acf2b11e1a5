"""Everything that can be known to be wrong before a run starts: one line that names the setting and the fix.

Nothing is started and nothing is written. The checks go from cheap to slow, so that a typing error is answered at once.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
from huggingface_hub import HfApi, try_to_load_from_cache
from transformers import AutoConfig

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.envs.loading import load_environment
from stream_rl.errors import BufferUnavailable, ConfigError, ModelError
from stream_rl.producer.loading import check_rollout

__all__ = ["preflight"]

SECONDS_FOR_REDIS = 5.0
SECONDS_FOR_HUB = 5.0


def preflight(config: Config, *, resume: bool = False) -> None:
    """Checks the run folder, ports, Redis, model and environment, and makes the first prompt.

    Must be called outside an event loop.

    Raises:
        UserError: something the user wrote is wrong; nothing has been started.
    """
    check_folder(config, resume)
    check_ports(config)
    load_environment(config.environment.path)
    asyncio.run(check_redis(config))
    check_model(config)
    asyncio.run(check_rollout(config))


def check_folder(config: Config, resume: bool) -> None:
    """A new run needs a folder of its own. Raises ConfigError."""
    folder = config.folder
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"run={config.run} is a file: name a folder")
    if not resume and folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"run={config.run} holds a run already: pass --resume to go on with it, or name another folder"
        )


def check_ports(config: Config) -> None:
    """The ports that the settings name must be free. Raises ConfigError."""
    if config.metrics.port is not None:
        _check_port("metrics.port", config.metrics.host, config.metrics.port)
    if config.engine.port is not None and not config.engine.urls:
        for port in range(config.engine.port, config.engine.port + config.engine.count):
            _check_port("engine.port", "127.0.0.1", port)


async def check_redis(config: Config) -> None:
    """A Redis that the settings name must answer and accept the password. Raises ConfigError."""
    if config.buffer.url is None:
        return
    timeout = min(config.buffer.timeout, SECONDS_FOR_REDIS)
    try:
        buffer = await TrajectoryBuffer.of(config, config.buffer.url, timeout=timeout)
    except BufferUnavailable as error:
        raise ConfigError(f"{error}; or leave buffer.url empty for an embedded server") from error
    await buffer.close()


def check_model(config: Config) -> None:
    """There must be a model, with positions enough for rollout.max_context_len. Raises ModelError, ConfigError."""
    path = config.model.path
    _check_model_exists(path)
    try:
        model = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path={path!r} holds no model that loads: {_first_line(error)}") from error
    positions = getattr(model.get_text_config(), "max_position_embeddings", None)
    if positions is not None and config.rollout.max_context_len > positions:
        raise ConfigError(
            f"rollout.max_context_len={config.rollout.max_context_len} is more than the {positions} positions of "
            f"model.path={path!r}: lower it"
        )


def _check_model_exists(path: str) -> None:
    """Answers within seconds where transformers would first try an unreachable hub again and again."""
    if Path(path).is_dir():
        return
    try:
        if not isinstance(try_to_load_from_cache(path, "config.json"), str):
            HfApi().model_info(path, timeout=SECONDS_FOR_HUB)
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise ModelError(
            f"model.path={path!r} is no folder, and the Hugging Face hub does not give it ({_first_line(error)}): "
            "name a model's folder, or write a small one with `stream-rl make-model`"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _check_port(setting: str, host: str, port: int) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OverflowError as error:
            raise ConfigError(f"{setting}={port} is no port: the highest is 65535") from error
        except OSError as error:
            raise ConfigError(
                f"{setting}={port} cannot be used on {host} ({error.strerror}): choose another, or leave it empty"
            ) from error
