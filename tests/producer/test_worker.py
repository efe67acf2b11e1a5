"""A producer against the real buffer: a whole run, its logs and metrics, drains, lost leases, deaths and resumes."""

from __future__ import annotations

import asyncio

import pytest
from rollouts import ScriptedEngines, halving

from stream_rl.buffer import LeasedSample, TrajectoryBuffer, Waiting
from stream_rl.engine.generation import Generation
from stream_rl.errors import BufferUnavailable
from stream_rl.metrics import turn_log
from stream_rl.producer.worker import Producer
from stream_rl.sample import Sample, Status


class ScriptedFleet(ScriptedEngines):
    """The fleet's interface over a script. `hold` keeps requests until they are aborted or it is set again."""

    def __init__(self, policy, cuts=()):
        super().__init__(policy, cuts)
        self.engines: tuple[str, ...] = ()
        self.hold = asyncio.Event()
        self.hold.set()
        self.aborted: dict[str, asyncio.Event] = {}

    async def refresh(self, engines):
        self.engines = tuple(name for name, _ in engines)

    async def generate(self, session_id, input_ids, sampling, *, rid=None) -> Generation:
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


async def test_a_run_is_played_to_its_end(config, rollout, open_buffer, tmp_path):
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


async def test_a_second_producer_resumes_where_the_first_was_killed(rollout, open_buffer):
    """Killed without a word: its tasks just stop. Every committed turn is kept; none is played again."""
    loaded = rollout(**{"trainer.steps": 1, "producer.lease_seconds": 0.3})
    buffer = await open_buffer(loaded.config)
    fleet = HoldingFleet(halving, requests=12)
    first = asyncio.create_task(Producer(loaded, buffer, fleet, "p").run(asyncio.Event()))
    await asyncio.wait_for(fleet.exhausted.wait(), 10)
    await kill(first)
    before = (await buffer.snapshot()).committed_turns

    engines = ScriptedFleet(halving)
    second = await TrajectoryBuffer.connect(buffer_url(buffer), loaded.config.name, timeout=5.0)
    playing = asyncio.create_task(Producer(loaded, second, engines, "q").run(asyncio.Event()))
    samples = await train(buffer, steps=1)
    await asyncio.wait_for(playing, 10)
    await second.close()

    assert before > 0
    assert len(engines.requests) == sum(sample.next_turn for sample in samples) - before
    assert {sample.reward for sample in samples} == {1.0}
