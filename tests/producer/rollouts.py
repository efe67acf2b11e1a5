"""Builders for the producer's tests: settings, scripted engines, environments with a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stream_rl.buffer.records import Outcome, Record, SampleStart
from stream_rl.config import Config
from stream_rl.engine.generation import Generation, ImageInputs, SamplingParams
from stream_rl.models.tiny_text import WORDS
from stream_rl.multimodal import Picture
from stream_rl.producer.loading import Rollout
from stream_rl.producer.prompts import PromptRow
from stream_rl.producer.samples import new_sample
from stream_rl.producer.turn_loop import Episode
from stream_rl.sample import Int32, Sample, SampleId, StopReason, Turn, VersionSpan, WeightVersion

ID = {word: number for number, word in enumerate(WORDS)}
END = ID["<|im_end|>"]


def run_config(folder: Path, model: Path, settings: Mapping[str, Any]) -> Config:
    """The guessing game with `settings` ({"rollout.max_turns": 2}) on top."""
    tree: dict[str, Any] = {
        "run": str(folder),
        "model": {"path": str(model)},
        "environment": {"path": "guess_number"},
        "rollout": {"groups_per_step": 2, "group_size": 2, "max_turn_len": 8, "max_response_len": 256,
                    "max_context_len": 512},
        "producer": {"concurrency": 8, "drain_seconds": 1.0},
        "trainer": {"steps": 2},
    }  # fmt: skip
    for key, value in settings.items():
        *parents, last = key.split(".")
        section = tree
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return Config.parse(tree)


def ids(text: str) -> list[int]:
    """Token ids of space-separated words of tiny-text."""
    return [ID[word] for word in text.split(" ")]


class ScriptedEngines:
    """Engines that answer with `policy(all ids so far) -> the whole reply`, cut at max_new_tokens.

    `cuts` gives, request by request, after how many tokens to abort; None lets the request run.
    """

    def __init__(
        self, policy: Callable[[list[int]], Sequence[int]], cuts: Iterable[int | None] = (), end: int = END
    ) -> None:
        self.end = end
        self.policy = policy
        self.cuts = iter(cuts)
        self.requests: list[tuple[list[int], SamplingParams]] = []
        self.images: list[ImageInputs | None] = []
        self.version = WeightVersion(0)

    async def generate(
        self,
        _session: str,
        input_ids: Int32,
        sampling: SamplingParams,
        *,
        images: ImageInputs | None = None,
        **_keys: str,
    ) -> Generation:
        await asyncio.sleep(0)
        self.images.append(images)
        given = input_ids.tolist()
        self.requests.append((given, sampling))
        reply = list(self.policy(given))[: sampling.max_new_tokens]
        # As the real engine: a stop token in the last place that the budget allows is called a length stop.
        reason = "stop" if reply[-1] == self.end and len(reply) < sampling.max_new_tokens else "length"
        cut = next(self.cuts, None)
        if cut is not None and cut < len(reply):
            reply, reason = reply[:cut], "abort"
        return generation(reply, reason, self.version)


def generation(tokens: Sequence[int], reason: str, version: WeightVersion) -> Generation:
    """An engine's answer; the log-prob of a token depends on the token alone."""
    array = np.array(tokens, np.int32)
    spans = (VersionSpan(0, len(array), version),) if len(array) else ()
    return Generation(array, (-array / 100).astype(np.float32), spans, reason)


def replies(*texts: str) -> Callable[[list[int]], Sequence[int]]:
    """A policy that says one text after the other; `.` stands for the end token."""
    script = iter(texts)
    return lambda _: ids(next(script).replace(".", "<|im_end|>"))


def halving(given: list[int]) -> list[int]:
    """The best policy of the guessing game, read from the conversation alone."""
    low, high = 1, 8
    said = [WORDS[token] for token in given]
    for word, answer in guesses_and_answers(said):
        low, high = (word + 1, high) if answer == "higher" else (low, word - 1)
    return [ID[str((low + high) // 2)], END]


def guesses_and_answers(words: Sequence[str]) -> list[tuple[int, str]]:
    """What was guessed and how it was answered, in order."""
    guesses = [int(word) for word in words if word.isdigit()]
    answers = [word for word in words if word in ("higher", "lower")]
    return list(zip(guesses, answers, strict=False))


class RecordingJournal:
    """Keeps everything that a turn loop records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.outcome: Outcome | None = None
        self.failure: tuple[StopReason, str] | None = None
        self.restarts = 0
        self.kept: dict[str, bytes] = {}
        self.carried: list[list[str]] = []
        """Names of the pictures that each commit brought along."""

    async def commit(
        self, records: Sequence[Record], outcome: Outcome | None = None, pictures: Sequence[Picture] = ()
    ) -> None:
        assert self.outcome is None, "committed after the end"
        self.records += records
        self.carried.append([picture.name for picture in pictures])
        self.kept |= {picture.name: picture.data for picture in pictures}
        self.outcome = outcome

    async def pictures(self, names: Sequence[str], known: Mapping[str, bytes]) -> Mapping[str, bytes]:
        return {name: self.kept[name] for name in names}

    async def restart(self) -> None:
        self.restarts += 1
        del self.records[1:]

    async def fail(self, reason: StopReason, detail: str) -> None:
        self.failure = (reason, detail)

    @property
    def turns(self) -> list[Turn]:
        return [record for record in self.records if isinstance(record, Turn)]


def fresh(rollout: Rollout, row: PromptRow | None = None) -> tuple[Sample, PromptRow]:
    """A new sample of the run's first prompt, or of `row`."""
    row = row or rollout.prompts.row(0)
    return new_sample(row, SampleId(0, 0), 7, rollout.config.rollout.temperature, session_id="0-0"), row


def resumed(rollout: Rollout, records: Sequence[Record], row: PromptRow | None = None) -> tuple[Sample, PromptRow]:
    """The sample that a journal with these records gives."""
    start, *turns = records
    assert isinstance(start, SampleStart)
    sample, row = fresh(rollout, row)
    sample.prompt_tokens = start.prompt_tokens
    sample.prompt_images, sample.prompt_image_tokens = start.images, start.image_tokens
    for turn in turns:
        assert isinstance(turn, Turn)
        sample.append(turn)
    return sample, row


async def play(
    rollout: Rollout, engines: Any, journal: RecordingJournal | None = None, row: PromptRow | None = None
) -> tuple[Sample, RecordingJournal]:
    """Plays one new episode, or resumes the one that `journal` holds."""
    journal = journal or RecordingJournal()
    begun = bool(journal.records)
    sample, row = resumed(rollout, journal.records, row) if begun else fresh(rollout, row)
    await Episode(rollout, engines, journal, sample, row, begun=begun).run()
    sample.check()
    return sample, journal
