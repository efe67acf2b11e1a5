"""A Redis and engines that answer, and are not what the run needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from stream_rl.buffer import RunRules, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.engine.client import ServerInfo
from stream_rl.errors import ConfigError
from stream_rl.preflight.services import check_engines, check_redis, check_serves
from stream_rl.producer.prompts import prompt_basis
from stream_rl.testing import FakeEngineServer, scripted

Make = Callable[..., Config]
EMPTY = scripted([1])


@pytest.fixture(params=[""])
def redis(plain_valkey: Callable[..., str], request: pytest.FixtureRequest) -> str:
    """The URL of a server of others, with these options."""
    return plain_valkey(*request.param.split())


async def test_a_redis_with_a_run_of_this_name(config: Make, redis: str) -> None:
    settings = config(buffer={"url": redis})
    await check_redis(settings, False)
    async with await TrajectoryBuffer.of(settings, redis) as buffer:
        await buffer.open_run(RunRules.of(settings))
    with pytest.raises(ConfigError, match=r"buffer.url holds a run called 'run' already"):
        await check_redis(settings, False)
    await check_redis(settings, True)
    await check_redis(config(buffer={"url": redis}, run="another"), False)


async def test_a_redis_with_this_runs_other_prompts(config: Make, redis: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "guess"}\n')
    settings = config(buffer={"url": redis}, data={"path": str(rows)})
    async with await TrajectoryBuffer.of(settings, redis) as buffer:
        await buffer.open_run(RunRules.of(settings))
        await buffer.settle_prompts(prompt_basis(settings))
    await check_redis(settings, True)
    rows.write_text('{"prompt": "guess"}\n{"prompt": "again"}\n')
    with pytest.raises(ConfigError, match=r"data\.path: this run was begun with .*'rows': 1.*, not .*'rows': 2"):
        await check_redis(settings, True)
    with pytest.raises(ConfigError, match="seed: this run was begun with 0, not 7: set it back"):
        await check_redis(config(buffer={"url": redis}, seed=7), True)


async def test_a_redis_from_which_this_run_is_gone(config: Make, redis: str) -> None:
    settings = config(buffer={"url": redis})
    await check_redis(settings, True)
    (settings.folder / "checkpoints" / "step-000020").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"the Redis of buffer\.url holds nothing of it"):
        await check_redis(settings, True)


@pytest.mark.parametrize("redis", ["--maxmemory 100mb --maxmemory-policy allkeys-lru"], indirect=True)
async def test_a_redis_that_drops_keys(config: Make, redis: str) -> None:
    with pytest.raises(ConfigError, match="set its maxmemory-policy to noeviction"):
        await check_redis(config(buffer={"url": redis}), False)


@pytest.mark.parametrize("redis", ["--maxmemory 100mb --maxmemory-policy noeviction"], indirect=True)
async def test_a_redis_that_refuses_when_full(config: Make, redis: str) -> None:
    await check_redis(config(buffer={"url": redis}), False)


async def test_a_redis_without_that_database(config: Make, redis: str) -> None:
    with pytest.raises(ConfigError, match=r"setting buffer.url.*DB index is out of range"):
        await check_redis(config(buffer={"url": f"{redis}?db=99"}), False)


async def test_a_server_that_is_no_redis(config: Make) -> None:
    async with FakeEngineServer(EMPTY, vocab_size=32) as server:
        url = server.url.replace("http:", "redis:")
        with pytest.raises(ConfigError, match=r"setting buffer.url='.*': Protocol error"):
            await check_redis(config(buffer={"url": url}), False)


async def test_engines_that_serve(config: Make) -> None:
    async with FakeEngineServer(EMPTY, vocab_size=32) as first, FakeEngineServer(EMPTY, vocab_size=32) as second:
        await check_engines(config(engine={"urls": [first.url, second.url]}))
        with pytest.raises(ConfigError, match=r"engine.urls names .* twice"):
            await check_engines(config(engine={"urls": [first.url, first.url]}))


async def test_an_engine_with_too_short_a_context(config: Make) -> None:
    async with FakeEngineServer(EMPTY, vocab_size=32, context_length=100) as server:
        with pytest.raises(ConfigError, match=r"rollout.max_context_len=128 is more than the context length 100 of"):
            await check_engines(config(engine={"urls": [server.url]}))


async def test_an_engine_with_another_vocabulary(config: Make, tiny_model: Path, tmp_path: Path) -> None:
    tree = orjson.loads((tiny_model / "config.json").read_bytes())
    (tmp_path / "config.json").write_bytes(orjson.dumps(tree | {"vocab_size": 77}))
    check_serves(config(), "http://a", ServerInfo(str(tiny_model), None, 8))
    check_serves(config(), "http://a", ServerInfo("on/another/machine", None, 8))
    with pytest.raises(ConfigError, match=r"engine.urls names 'http://a', which serves .* a vocabulary of 77 tokens"):
        check_serves(config(), "http://a", ServerInfo(str(tmp_path), None, 8))


@pytest.mark.parametrize("url", ["localhost:30000", "ftp://localhost", "http://", "", "engine"])
async def test_an_engine_that_is_no_address(config: Make, url: str) -> None:
    with pytest.raises(ConfigError, match=r"write it like http://host:30000"):
        await check_engines(config(engine={"urls": [url]}))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://nowhere.invalid"])
async def test_an_engine_that_is_not_there(config: Make, url: str) -> None:
    with pytest.raises(ConfigError, match=r"where no SGLang server answers .*: start it, or leave it out"):
        await check_engines(config(engine={"urls": [url]}))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost", "engine.router_url names 'localhost': write it like"),
        ("http://127.0.0.1:1", "engine.router_url names 'http://127.0.0.1:1', where nothing answers"),
    ],
)
async def test_a_router_that_is_not_there(config: Make, url: str, message: str) -> None:
    async with FakeEngineServer(EMPTY, vocab_size=32) as server:
        with pytest.raises(ConfigError, match=message):
            await check_engines(config(engine={"router_url": url, "urls": [server.url]}))
        await check_engines(config(engine={"router_url": server.url, "urls": [server.url]}))
