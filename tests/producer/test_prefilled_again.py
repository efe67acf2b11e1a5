"""What a weight update costs a conversation: its context is computed once more, and that is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from prometheus_client import REGISTRY
from rollouts import END, RecordingJournal, halving, play

from stream_rl.engine.client import PauseMode
from stream_rl.engine.fleet import Fleet
from stream_rl.engine.publish import WeightPublisher
from stream_rl.models.tiny_text import WORDS
from stream_rl.producer.prompts import PromptRow
from stream_rl.sample import WeightVersion
from stream_rl.testing import FakeEngineServer


def guesses(prompt: Sequence[int]) -> Iterator[tuple[int, float]]:
    return ((token, -0.5) for token in halving(list(prompt)))


class Caching(FakeEngineServer):
    """Knows again what it has computed, until it is flushed."""

    def __init__(self) -> None:
        super().__init__(guesses, vocab_size=len(WORDS), eos=END)
        self._computed: list[list[int]] = []
        load = self._controls["update_weights_from_disk"]

        def flushing(body: dict[str, Any]) -> str | None:
            if body["flush_cache"]:
                self._computed.clear()
            return load(body)

        self._controls["update_weights_from_disk"] = flushing

    async def _generate(self, http: web.Request) -> web.Response:
        given = (await http.json())["input_ids"]
        cached = max((_shared(given, computed) for computed in self._computed), default=0)
        response = await super()._generate(http)
        assert isinstance(response.body, bytes)
        answer = orjson.loads(response.body)
        answer["meta_info"]["cached_tokens"] = cached
        self._computed.append([*given, *answer["output_ids"]])
        return web.Response(body=orjson.dumps(answer), content_type="application/json")


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


class Updating(RecordingJournal):
    """Publishes new weights once the second turn is committed."""

    def __init__(self, publisher: WeightPublisher, url: str) -> None:
        super().__init__()
        self._publisher, self._url = publisher, url

    async def commit(self, *given: Any) -> None:
        before = len(self.turns)
        await super().commit(*given)
        if before < 2 <= len(self.turns):
            (update,) = await self._publisher.publish([("engine-0", self._url)], WeightVersion(1), Path("/weights/1"))
            assert update.ok


def prefilled_again() -> float:
    labels = {"environment": "guess_number"}
    return REGISTRY.get_sample_value("stream_rl_prefilled_again_tokens_total", labels) or 0.0


@pytest.mark.parametrize(("mode", "flushed"), [("retract", True), ("in_place", False)])
async def test_an_update_between_turns_has_the_context_computed_again(
    rollout: Any, mode: PauseMode, flushed: bool
) -> None:
    before = prefilled_again()
    async with Caching() as engine:
        fleet, publisher = Fleet(vocab_size=len(WORDS), timeout=5.0), WeightPublisher(pause_mode=mode)
        await fleet.refresh([("engine-0", engine.url)])
        sample, journal = await play(rollout(), fleet, Updating(publisher, engine.url), PromptRow("guess", 8))
        await publisher.close()
        await fleet.close()
    assert [turn.spans[0].version.step for turn in journal.turns] == [0, 0, 1, 1]
    first, second = journal.turns[:2]
    known = len(sample.prompt_tokens) + len(first.generated) + len(first.observation) + len(second.generated)
    assert prefilled_again() - before == (known if flushed else 0)
