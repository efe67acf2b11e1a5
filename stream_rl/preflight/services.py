"""What the settings name and others run: Redis and engines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.config import Config, ModelConfig
from stream_rl.engine.client import EngineClient, ServerInfo
from stream_rl.errors import BufferUnavailable, ConfigError, EngineError, ModelError
from stream_rl.producer.loading import load_vocab_size
from stream_rl.producer.prompts import prompt_basis

__all__ = ["check_engines", "check_redis", "check_serves"]

SECONDS = 5.0
DEFAULT_PORTS = {"http": 80, "https": 443}


async def check_redis(config: Config, resume: bool) -> None:
    """Redis must answer, accept the password, keep what it is given, and hold this run's prompts or no run of its name.

    Raises:
        ConfigError: it does not.
    """
    if config.buffer.url is None:
        return
    timeout = min(config.buffer.timeout, SECONDS)
    try:
        async with await TrajectoryBuffer.of(config, config.buffer.url, timeout=timeout) as buffer:
            evicts, begun = await buffer.evicts(), await buffer.was_opened()
            if resume:
                await buffer.check_prompts(await asyncio.to_thread(prompt_basis, config))
    except BufferUnavailable as error:
        raise ConfigError(f"{error}; or leave buffer.url empty for an embedded server") from error
    if evicts:
        raise ConfigError("the Redis of buffer.url drops keys when it is full: set its maxmemory-policy to noeviction")
    if resume and not begun and any(config.folder.glob("checkpoints/step-*")):
        raise ConfigError(
            f"run={config.run} has checkpoints, but the Redis of buffer.url holds nothing of it: name the one that it "
            "was begun with, or start a new run in another folder"
        )
    if begun and not resume:
        raise ConfigError(
            f"the Redis of buffer.url holds a run called {config.name!r} already: "
            "give this one's folder, run, another name, or go on in that one's folder with --resume"
        )


async def check_engines(config: Config) -> None:
    """The router and the servers of engine.urls must answer, each once, and serve this model. Raises ConfigError."""
    urls = config.engine.urls
    if (router := config.engine.router_url) is not None:
        await _check_router(router)
    for url in urls:
        _check_address("engine.urls", url)
        if urls.count(url) > 1:
            raise ConfigError(f"engine.urls names {url!r} twice: leave one out")
        try:
            async with EngineClient(url, vocab_size=1, attempts=1) as client:
                info = await client.server_info(timeout=SECONDS)
        except (EngineError, KeyError, TypeError) as error:
            raise ConfigError(
                f"engine.urls names {url!r}, where no SGLang server answers ({error}): start it, or leave it out"
            ) from error
        check_serves(config, url, info)


def _check_address(setting: str, url: str) -> None:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ConfigError(f"{setting} names {url!r}: write it like http://host:30000")


async def _check_router(url: str) -> None:
    """Only that something listens: a router says that it is not ready as long as no engine stands behind it."""
    _check_address("engine.router_url", url)
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme])
    except OSError as error:  # TimeoutError is one
        raise ConfigError(
            f"engine.router_url names {url!r}, where nothing answers ({error or 'timeout'}): start it, or leave it out"
        ) from error
    writer.close()


def check_serves(config: Config, url: str, info: ServerInfo) -> None:
    """The server at `url` must have been started for this model. Raises ConfigError."""
    if info.context_length is not None and info.context_length < config.rollout.max_context_len:
        raise ConfigError(
            f"rollout.max_context_len={config.rollout.max_context_len} is more than the context length "
            f"{info.context_length} of {url} in engine.urls: lower it"
        )
    if not Path(info.model_path).is_dir():  # of another machine, or a name on the hub: its weights will not fit
        return
    try:
        served, trained = load_vocab_size(ModelConfig(path=info.model_path)), load_vocab_size(config.model)
    except ModelError:
        return
    if served != trained:
        raise ConfigError(
            f"engine.urls names {url!r}, which serves {info.model_path} with a vocabulary of {served} tokens; "
            f"model.path={config.model.path!r} has {trained}: serve that model"
        )
