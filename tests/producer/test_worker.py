"""A producer against the real buffer: a whole run, its logs and metrics, drains, lost leases, deaths and resumes."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from rollouts import END, ID, ScriptedEngines, halving

from stream_rl.buffer import TrajectoryBuffer, Waiting
from stream_rl.engine.generation import Generation
from stream_rl.errors import DataError
from stream_rl.metrics import turn_log
from stream_rl.models.tiny_text import WORDS
from stream_rl.producer.samples import rebuild
from stream_rl.producer.turn_loop import Episode
from stream_rl.producer.worker import Producer, run_producer
from stream_rl.sample import Sample, Status, WeightVersion
from stream_rl.testing import FakeEngineServer, scripted


class ScriptedFleet(ScriptedEngines):
    """The fleet's interface over a script.

    While `hold` is not set, requests wait until they are aborted; after `limit` requests the others get no answer.
    """

    def __init__(self, policy, cuts=()):
        super().__init__(policy, cuts)
        self.engines: tuple[str, ...] = ()
        self.hold = asyncio.Event()
        self.hold.set()
        self.aborted: dict[str, asyncio.Event] = {}
        self.limit = 1 << 30
        self.exhausted = asyncio.Event()

    async def refresh(self, engines, confirmed=None):
        self.engines = tuple(name for name, _ in engines)

    async def generate(self, session_id, input_ids, sampling, *, images=None, rid=None, extra_key=None) -> Generation:
        if len(self.requests) >= self.limit:
            self.exhausted.set()
            await asyncio.sleep(3600)
        aborted = self.aborted.setdefault(rid, asyncio.Event())
        waits = [asyncio.create_task(event.wait()) for event in (aborted, self.hold)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        whole = await super().generate(session_id, input_ids, sampling, rid=rid)
        if not aborted.is_set():
            return whole
        spans = (whole.spans[0]._replace(end=1),)
        return Generation(whole.tokens[:1], whole.log_probs[:1], spans, "abort")

    async def abort(self, rid):
        if rid in self.aborted:
            self.aborted[rid].set()


async def train(buffer: TrajectoryBuffer, steps: int) -> list[Sample]:
    """A trainer that only takes its steps, then ends the run."""
    claim, samples = await buffer.claim_trainer(), []
    for step in range(1, steps + 1):
        async with asyncio.timeout(20):
            while isinstance(entry := await buffer.take_step(claim, step), Waiting):
                await asyncio.sleep(0.01)
        samples += [sample for group in await buffer.load_groups(entry.groups) for sample in group.samples]
    await buffer.finish_run()
    return samples


async def drained(producer: Producer, fleet: ScriptedFleet, stop: asyncio.Event) -> None:
    """Lets the producer have four requests under way, then stops it."""
    playing = asyncio.create_task(producer.run(stop))
    async with asyncio.timeout(5):
        while len(fleet.aborted) < 4:
            await asyncio.sleep(0.01)
    stop.set()
    await asyncio.wait_for(playing, 5)


async def test_a_run_is_played_to_its_end(rollout, open_buffer, tmp_path):
    loaded = rollout(**{"producer.lease_seconds": 0.3})
    buffer = await open_buffer(loaded.config)
    log = turn_log.JsonLines(tmp_path / "turns.jsonl")
    producer = Producer(loaded, buffer, ScriptedFleet(halving), "p", log)

    playing = asyncio.create_task(producer.run(asyncio.Event()))
    samples = await train(buffer, steps=2)
    await asyncio.wait_for(playing, 10)

    assert len(samples) == 8
    assert {sample.reward for sample in samples} == {1.0}
    assert all(sample.status is Status.COMPLETED for sample in samples)
    for sample in samples:
        sample.check()
    assert len({sample.sampling_seed for sample in samples}) == 8
    lines = list(turn_log.read(tmp_path / "turns.jsonl"))
    assert len(lines) == sum(sample.next_turn for sample in samples)


async def test_concurrency_may_change_while_samples_are_played(rollout, open_buffer):
    loaded = rollout(**{"producer.concurrency": 2, "producer.lease_seconds": 0.3})
    buffer = await open_buffer(loaded.config)
    fleet, stop = ScriptedFleet(halving), asyncio.Event()
    fleet.hold.clear()
    playing = asyncio.create_task(Producer(loaded, buffer, fleet, "p").run(stop))
    async with asyncio.timeout(10):
        for concurrency in (2, 5):
            await buffer.set_live({"concurrency": concurrency})
            while len(fleet.aborted) < concurrency:  # requests under way
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert (await buffer.snapshot()).leased == concurrency
    stop.set()
    await asyncio.wait_for(playing, 5)


async def test_a_second_producer_resumes_where_the_first_was_killed(rollout, open_buffer, server):
    """Killed without a word: its tasks just stop. Every committed turn is kept; none is played again."""
    loaded = rollout(**{"trainer.steps": 1, "producer.lease_seconds": 0.3})
    buffer = await open_buffer(loaded.config)
    fleet = ScriptedFleet(halving)
    fleet.limit = 7
    first = asyncio.create_task(Producer(loaded, buffer, fleet, "p").run(asyncio.Event()))
    await asyncio.wait_for(fleet.exhausted.wait(), 10)
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.wait([first], timeout=5)
    before = (await buffer.snapshot()).committed_turns

    engines = ScriptedFleet(halving)
    async with await TrajectoryBuffer.connect(server.url, loaded.config.name, timeout=5.0) as second:
        playing = asyncio.create_task(Producer(loaded, second, engines, "q").run(asyncio.Event()))
        samples = await train(buffer, steps=1)
        await asyncio.wait_for(playing, 10)

    assert before == len(fleet.requests) >= 7
    assert len(engines.requests) == sum(sample.next_turn for sample in samples) - before
    assert {sample.reward for sample in samples} == {1.0}


async def test_nothing_is_kept_of_a_sample_that_ended(rollout, open_buffer, monkeypatch):
    begun: list[weakref.ref[Episode]] = []

    def noted(*args, **named) -> Episode:
        episode = Episode(*args, **named)
        begun.append(weakref.ref(episode))
        return episode

    monkeypatch.setattr("stream_rl.producer.worker.Episode", noted)
    loaded = rollout(**{"trainer.steps": 1})
    buffer, stop = await open_buffer(loaded.config), asyncio.Event()
    playing = asyncio.create_task(Producer(loaded, buffer, ScriptedFleet(halving), "p").run(stop))
    async with asyncio.timeout(10):
        while (await buffer.snapshot()).outcomes < 4:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    gc.collect()

    assert not playing.done()
    assert [episode() for episode in begun] == [None] * 4
    stop.set()
    await asyncio.wait_for(playing, 5)


async def test_a_drain_commits_partial_turns_and_gives_every_lease_back(rollout, open_buffer, server):
    loaded = rollout(**{"trainer.steps": 1})
    buffer = await open_buffer(loaded.config)
    fleet, stop = ScriptedFleet(halving), asyncio.Event()
    fleet.hold.clear()
    await drained(Producer(loaded, buffer, fleet, "p"), fleet, stop)

    snapshot = await buffer.snapshot()
    assert (snapshot.leased, snapshot.resumable) == (0, 4)
    async with await TrajectoryBuffer.connect(server.url, loaded.config.name, timeout=5.0) as second:
        await second.heartbeat("q", 60.0)
        leased = await second.lease("q", 8)
    assert [len(sample.turns[0].generated) for sample in leased] == [1] * 4
    assert not any(sample.turns[0].complete for sample in leased)


async def test_an_engine_that_ignores_aborts_does_not_hold_up_a_drain(rollout, open_buffer):
    loaded = rollout(**{"trainer.steps": 1, "producer.drain_seconds": 0.2})
    buffer = await open_buffer(loaded.config)
    fleet, stop = DeafFleet(halving), asyncio.Event()
    fleet.hold.clear()
    await drained(Producer(loaded, buffer, fleet, "p"), fleet, stop)

    assert (await buffer.snapshot()).leased == 0


async def test_a_run_that_drains_stops_its_producers(rollout, open_buffer):
    loaded = rollout(**{"producer.lease_seconds": 0.3})
    buffer = await open_buffer(loaded.config)
    playing = asyncio.create_task(Producer(loaded, buffer, ScriptedFleet(halving), "p").run(asyncio.Event()))

    await buffer.drain_run()
    await asyncio.wait_for(playing, 5)

    assert (await buffer.snapshot()).leased == 0


async def test_a_prompt_longer_than_its_budget_stops_the_producer_by_name(rollout, open_buffer):
    loaded = rollout(**{"rollout.max_context_len": 9})
    buffer = await open_buffer(loaded.config)

    with pytest.raises(DataError, match=r"rollout\.max_context_len=9"):
        await asyncio.wait_for(Producer(loaded, buffer, ScriptedFleet(halving), "p").run(asyncio.Event()), 5)


async def test_siblings_share_the_prompt_and_differ_in_their_seed(rollout, open_buffer):
    loaded = rollout()
    buffer = await open_buffer(loaded.config)

    samples = [rebuild(leased, loaded)[0] for leased in await buffer.lease("p", 4)]

    by_group = {group: [s for s in samples if s.group_index == group] for group in (0, 1)}
    for siblings in by_group.values():
        assert siblings[0].label == siblings[1].label
        assert siblings[0].sampling_seed != siblings[1].sampling_seed


class DeafFleet(ScriptedFleet):
    """Ignores aborts."""

    async def abort(self, rid):
        return None


async def test_the_whole_process_over_http(config, open_buffer, server):
    """`run_producer` with the real client against the fake engine: turn log, metrics and all."""
    settings = config(**{"trainer.steps": 1, "rollout.max_turn_len": 2, "producer.lease_seconds": 0.3})
    async with FakeEngineServer(scripted([ID["4"], END], [ID["6"], END]), vocab_size=len(WORDS)) as engine:
        buffer = await open_buffer(settings)
        await buffer.engine_joined("engine-0", engine.url, 1)
        await buffer.engine_serving("engine-0", WeightVersion(0))
        playing = asyncio.create_task(
            run_producer(settings, producer_id="producer-0", buffer_url=server.url, stop=asyncio.Event())
        )
        samples = await train(buffer, steps=1)
        await asyncio.wait_for(playing, 10)

    lines = list(turn_log.read(settings.folder / "turns" / "producer-0.jsonl"))
    assert len(lines) == sum(sample.next_turn for sample in samples)
    assert {version for line in lines for version in line["versions"]} == {"0"}
    (process,) = (await buffer.snapshot()).processes
    assert (process.name, process.kind) == ("producer-0", "producer")
    assert process.metrics_url.endswith("/metrics")
