"""Publishing through a process group, over fake engines and a fake trainer's end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.engine.client import TensorSpec
from stream_rl.engine.ports import free_port
from stream_rl.engine.publish import WeightPublisher
from stream_rl.engine.publish_group import GroupPublisher, buckets, check_tensors, checkpoint_shapes
from stream_rl.errors import WeightUpdateFailed
from stream_rl.sample import WeightVersion
from stream_rl.testing import FakeEngineServer, seeded

TENSORS = [TensorSpec(f"layer.{n}", (8, 4), "float32") for n in range(3)]
VERSION = WeightVersion(1)
SHAPES = {tensor.name: tensor.shape for tensor in TENSORS}
SIZES = st.lists(st.tuples(st.integers(1, 40), st.sampled_from(["float32", "bfloat16"])), max_size=12)


class FakeSender:
    """Writes down what it is asked; fails where it is told to."""

    backend = "gloo"

    def __init__(self) -> None:
        self.tensors: Sequence[TensorSpec] = TENSORS
        self.log: list[str] = []
        self.broken_broadcasts = 0

    def listen(self, world_size: int) -> tuple[str, int]:
        self.log.append(f"listen {world_size}")
        return "127.0.0.1", 4711

    def join(self, name: str) -> None:
        self.log.append(f"join {name}")

    def broadcast(self, start: int, end: int) -> None:
        self.log.append(f"send {start}:{end}")
        if self.broken_broadcasts:
            self.broken_broadcasts -= 1
            raise WeightUpdateFailed("the group is broken")

    def close(self) -> None:
        self.log.append("close")


@pytest.fixture
async def engines() -> AsyncIterator[list[FakeEngineServer]]:
    """Two engines at version 0."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeEngineServer(seeded(0, 32), vocab_size=32)) for _ in range(2)]


@pytest.fixture
def sender() -> FakeSender:
    """The trainer's end."""
    return FakeSender()


@pytest.fixture
async def group(sender: FakeSender) -> AsyncIterator[GroupPublisher]:
    """Publishes what `sender` sends."""
    publisher = WeightPublisher(timeout=2.0)
    yield GroupPublisher(publisher, sender, SHAPES, "float32")
    await publisher.close()


def named(engines: list[FakeEngineServer]) -> list[tuple[str, str]]:
    """What the buffer would say of them."""
    return [(f"engine-{number}", engine.url) for number, engine in enumerate(engines)]


async def test_the_group_is_kept_while_the_engines_are_the_same(
    group: GroupPublisher, sender: FakeSender, engines: list[FakeEngineServer]
) -> None:
    for step in (1, 2):
        updates = await group.publish(named(engines), WeightVersion(step))
        assert all(update.ok for update in updates)
        assert [engine.version for engine in engines] == [str(step)] * 2
    assert sender.log == ["close", "listen 3", "join stream_rl", "send 0:3", "send 0:3"]
    await group.publish(named(engines)[:1], WeightVersion(3))
    assert sender.log[5:] == ["close", "listen 2", "join stream_rl", "send 0:3"]
    joined = [body for path, body in engines[1].calls if path == "/init_weights_update_group"]
    assert [(body["rank_offset"], body["world_size"]) for body in joined] == [(2, 3)]


async def test_the_engines_stand_still_from_their_pause_on_and_not_while_the_group_forms(
    sender: FakeSender, engines: list[FakeEngineServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(part: str, seconds: float) -> Callable[..., None]:
        act = getattr(FakeSender, part)

        def slowly(self: FakeSender, *arguments: Any) -> None:
            time.sleep(seconds)
            act(self, *arguments)

        return slowly

    monkeypatch.setattr(FakeSender, "join", slow("join", 0.3))
    monkeypatch.setattr(FakeSender, "broadcast", slow("broadcast", 0.1))
    sender.broken_broadcasts = 1
    publisher = WeightPublisher(timeout=30.0)
    updates = await GroupPublisher(publisher, sender, SHAPES, "float32").publish(named(engines), VERSION)
    await publisher.close()
    took = updates[0].seconds
    assert took == updates[1].seconds
    # Two rounds, of which the first forms the group before anything is paused.
    assert 0.2 <= took["transfer"] <= took["pause"] - 0.3 <= took["update"] - 0.6


async def test_the_update_is_paused_bracketed_and_flushed(
    group: GroupPublisher, engines: list[FakeEngineServer]
) -> None:
    await group.publish(named(engines), WeightVersion(1))
    calls = [(path, body) for path, body in engines[0].calls if "group" not in path]
    assert [path for path, _ in calls] == [
        "/pause_generation",
        "/begin_weight_update",
        "/update_weights_from_distributed",
        "/end_weight_update",
        "/continue_generation",
    ]
    assert calls[2][1]["names"] == list(SHAPES)
    assert (calls[2][1]["flush_cache"], calls[2][1]["weight_version"]) == (True, "1")


async def test_in_place_keeps_the_cache(sender: FakeSender, engines: list[FakeEngineServer]) -> None:
    publisher = WeightPublisher(timeout=2.0, pause_mode="in_place")
    assert all(
        update.ok
        for update in await GroupPublisher(publisher, sender, SHAPES, "float32").publish(named(engines), VERSION)
    )
    await publisher.close()
    bodies = dict(engines[0].calls)
    assert bodies["/pause_generation"] == {"mode": "in_place"}
    sent = bodies["/update_weights_from_distributed"]
    assert (sent["flush_cache"], sent["weight_version"]) == (False, "1")


async def test_the_version_comes_with_the_last_bucket(
    group: GroupPublisher, engines: list[FakeEngineServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream_rl.engine.publish_group.BUCKET_BYTES", 256)
    await group.publish(named(engines), WeightVersion(1))
    sent = [body for path, body in engines[0].calls if path == "/update_weights_from_distributed"]
    assert [(len(body["names"]), body["weight_version"], body["flush_cache"]) for body in sent] == [
        (2, None, False),
        (1, "1", True),
    ]


async def test_a_dead_engine_is_reported_and_the_rest_get_everything_once_more(
    group: GroupPublisher, sender: FakeSender, engines: list[FakeEngineServer]
) -> None:
    places = [("dead", f"http://127.0.0.1:{free_port()}"), *named(engines)]
    dead, *others = await group.publish(places, WeightVersion(1))
    assert not dead.ok
    assert all(update.ok for update in others)
    assert [engine.version for engine in engines] == ["1", "1"]
    assert sender.log[-2:] == ["join stream_rl", "send 0:3"]


async def test_a_broken_group_is_formed_anew(
    group: GroupPublisher, sender: FakeSender, engines: list[FakeEngineServer]
) -> None:
    sender.broken_broadcasts = 1
    assert all(update.ok for update in await group.publish(named(engines), WeightVersion(1)))
    assert sender.log.count("listen 3") == 2


async def test_what_stays_broken_fails_everywhere_and_no_token_comes_of_half_changed_weights(
    group: GroupPublisher, sender: FakeSender, engines: list[FakeEngineServer]
) -> None:
    sender.broken_broadcasts = 9
    updates = await group.publish(named(engines), WeightVersion(1))
    assert [update.error for update in updates] == ["the group is broken"] * 2
    assert all(engine.paused for engine in engines)
    sender.broken_broadcasts = 0
    assert all(update.ok for update in await group.publish(named(engines), WeightVersion(2)))
    assert not any(engine.paused for engine in engines)


async def test_between_two_attempts_every_engine_stays_paused(
    group: GroupPublisher, sender: FakeSender, engines: list[FakeEngineServer]
) -> None:
    sender.broken_broadcasts = 1
    await group.publish(named(engines), WeightVersion(1))
    paths = [path for path, _ in engines[0].calls]
    assert paths.count("/update_weights_from_distributed") == 2
    assert paths.count("/continue_generation") == 1


async def test_an_engine_that_cannot_begin_is_left_out_and_the_others_are_not_taken_for_updated(
    group: GroupPublisher, engines: list[FakeEngineServer]
) -> None:
    engines[0].fail("/begin_weight_update", "500", "500", "500")
    refused, other = await group.publish(named(engines), WeightVersion(1))
    assert not refused.ok
    assert other.ok
    assert [engine.version for engine in engines] == ["0", "1"]


async def test_wrong_names_are_found_before_anything_is_sent(
    group: GroupPublisher, sender: FakeSender, engines: list[FakeEngineServer]
) -> None:
    sender.tensors = TENSORS[:2]
    with pytest.raises(WeightUpdateFailed, match=r"no weight layer\.2"):
        await group.publish(named(engines), WeightVersion(1))
    assert not engines[0].calls


def test_names_shapes_and_dtypes_must_be_the_engines() -> None:
    check_tensors(TENSORS, SHAPES, "float32")
    with pytest.raises(WeightUpdateFailed, match=r"a weight extra\.weight, which the checkpoint does not have"):
        check_tensors([*TENSORS, TensorSpec("extra.weight", (1,), "float32")], SHAPES, "float32")
    with pytest.raises(WeightUpdateFailed, match=r"shape \(8, 4\); the checkpoint's is \(4, 8\)"):
        check_tensors(TENSORS, {**SHAPES, "layer.1": (4, 8)}, "float32")
    with pytest.raises(WeightUpdateFailed, match=r"layer\.0 is float32; the engines have bfloat16"):
        check_tensors(TENSORS, SHAPES, "bfloat16")


def test_the_checkpoints_shapes_come_from_its_headers(tiny_model: Path) -> None:
    shapes = checkpoint_shapes(tiny_model)
    assert shapes["lm_head.weight"] == shapes["model.embed_tokens.weight"] == (32, 64)
    assert len(shapes) == 25


@given(SIZES, st.integers(1, 100))
def test_buckets_cover_everything_once_within_the_limit(sizes: list[tuple[int, str]], limit: int) -> None:
    tensors = [TensorSpec(str(n), (size,), dtype) for n, (size, dtype) in enumerate(sizes)]
    runs = list(buckets(tensors, limit))
    assert [n for start, end in runs for n in range(start, end)] == list(range(len(tensors)))
    for start, end in runs:
        total = sum(tensor.shape[0] * (4 if tensor.dtype == "float32" else 2) for tensor in tensors[start:end])
        assert total <= limit or end == start + 1
