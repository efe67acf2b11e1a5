"""Episodes of a hundred turns through the real buffer and the real client: what a turn costs to keep does not grow."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from patient_env import ANSWERS
from rollouts import END, ID
from test_worker import train

from stream_rl.buffer import codec
from stream_rl.engine.fleet import Fleet
from stream_rl.models.tiny_text import WORDS
from stream_rl.producer.worker import Producer
from stream_rl.sample import Sample, Status, StopReason, Turn, WeightVersion
from stream_rl.testing import FakeEngineServer

TURNS = 100
FEW_BYTES = 24
"""Digits more or fewer, of numbers in a record."""


def counting(prompt: Sequence[int]) -> Iterator[tuple[int, float]]:
    """A number by the prompt's length, and the end."""
    yield ID[str(len(prompt) % 9)], -0.5
    yield END, -0.25


def whole_conversation(sample: Sample) -> list[dict[str, str]]:
    """The sample's messages, by what its tokens say; the last turn has no observation."""
    messages = [{"role": "user", "content": "guess"}]
    for number, turn in enumerate(sample.turns, 1):
        messages.append({"role": "assistant", "content": WORDS[turn.generated[0]]})
        messages.append({"role": "user", "content": ANSWERS[number % 2]})
    return messages[:-1]


async def test_ids_are_those_of_the_whole_template_and_commits_stay_as_large_as_one_turn(
    rollout, open_buffer, monkeypatch
):
    loaded = rollout(**{
        "environment.path": "patient_env", "rollout.max_turns": TURNS, "rollout.max_response_len": 2000,
        "rollout.max_context_len": 2100, "rollout.groups_per_step": 1, "trainer.steps": 1,
        "producer.lease_seconds": 1.0,
    })  # fmt: skip
    buffer = await open_buffer(loaded.config)
    sizes: defaultdict[str, list[int]] = defaultdict(list)
    turns: defaultdict[str, list[int]] = defaultdict(list)
    commit = buffer.commit

    async def weighed(lease, position, records, outcome=None):
        sizes[str(lease.sample_id)].append(sum(len(p) for r in records for p in codec.pieces(r, zstd=False)))
        turns[str(lease.sample_id)] += [record.index for record in records if isinstance(record, Turn)]
        await commit(lease, position, records, outcome)

    monkeypatch.setattr(buffer, "commit", weighed)
    async with FakeEngineServer(counting, vocab_size=len(WORDS)) as engine:
        await buffer.engine_joined("engine-0", engine.url, 1)
        await buffer.engine_serving("engine-0", WeightVersion(0))
        fleet = Fleet(vocab_size=len(WORDS), timeout=30.0)
        playing = asyncio.create_task(Producer(loaded, buffer, fleet, "p").run(asyncio.Event()))
        samples = await asyncio.wait_for(train(buffer, steps=1), 120)
        await asyncio.wait_for(playing, 10)
        await fleet.close()

    assert len(samples) == 2
    for sample in samples:
        sample.check()
        assert (sample.status, sample.stop_reason) == (Status.TRUNCATED, StopReason.MAX_TURNS)
        assert sample.next_turn == TURNS
        text = loaded.chat.render(whole_conversation(sample), False)
        whole = loaded.chat.tokenizer.encode(text, add_special_tokens=False)
        assert sample.tokens.tolist() == whole[:-1], "all but the newline that no model writes"
    for name, kept in sizes.items():
        assert turns[name] == list(range(TURNS)), "each commit has its own turn, and no other"
        assert len(kept) == TURNS
        assert max(kept[1:]) < 2 * min(kept[1:])
        assert abs(median(kept[-30:]) - median(kept[1:31])) <= FEW_BYTES
    assert len(sizes) == 2
