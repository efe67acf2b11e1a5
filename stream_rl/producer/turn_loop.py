"""One episode: generate, act, observe, commit, until something ends it.

    ┌► generate ──cut by a budget──────────────► score what is there ──► end: the budget's name
    │     │ ├──── interrupted, or a chunk long: commit an open turn, generate the rest ─┐
    │     ▼ ◄───────────────────────────────────────────────────────────────────────────┘
    │    act ──── the environment's last word ─────────────────────────► end: env_done, parse_failures, max_turns
    │     ▼
    │  observe ── no room for it ──────────────────────────────────────► end: max_response_len, max_context_len
    │     ▼
    └─ commit

The whole state is the `Sample` and the environment, so the loop can stop after any commit and go on in another process.
A commit that ends the episode carries the outcome, so no finished turn waits for its outcome. A long turn is asked for
in chunks, each committed before the next: a request more for thousands of tokens, whose prefix the engine has cached,
where a stream would cost its HTTP process an event a token. Token truth: what the engine generated is appended as it
came; only observations are encoded, by the delta rule.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import numpy as np

from stream_rl.buffer.records import Outcome, Record
from stream_rl.engine.generation import Generation, SamplingParams
from stream_rl.errors import EngineError, EnvFatalError
from stream_rl.metrics import catalog
from stream_rl.metrics.tracing import spanned
from stream_rl.multimodal import Encoded
from stream_rl.producer.album import Album
from stream_rl.producer.budgets import Limit, overflow, tightest
from stream_rl.producer.cache_scope import CacheScope
from stream_rl.producer.engines import Engines
from stream_rl.producer.env_session import Step
from stream_rl.producer.episode_env import EpisodeEnv, RestartNeeded
from stream_rl.producer.journal import Journal
from stream_rl.producer.loading import Rollout
from stream_rl.producer.prompts import PromptRow
from stream_rl.producer.retries import EnvRetries
from stream_rl.producer.samples import turn_seed
from stream_rl.producer.turn_record import (
    NOTHING,
    NOTHING_SHOWN,
    Acted,
    Piece,
    answer_of,
    complete_record,
    finish_reason,
    open_record,
    start_record,
)
from stream_rl.sample import Int32, Sample, StopReason, Turn

__all__ = ["Episode"]

logger = logging.getLogger(__name__)

ABORT_PAUSE = 0.05
"""Seconds before a request that the engine aborted in its queue is sent again."""


class Episode:
    """Runs one sample to its end, from wherever its journal stands.

    Args:
        rollout: what all episodes of the run share.
        engines: where tokens come from.
        journal: where records go.
        sample: empty for a new episode, else rebuilt from its journal.
        row: the sample's prompt.
        begun: whether the journal holds the sample's start record.
        returned: why it came back from its last producer.
        scope: whose cached prefixes it may use; None: anybody's.
    """

    def __init__(
        self,
        rollout: Rollout,
        engines: Engines,
        journal: Journal,
        sample: Sample,
        row: PromptRow,
        *,
        begun: bool = False,
        returned: str = "",
        scope: CacheScope | None = None,
        clock: Callable[[], float] = time.monotonic,  # the event loop's may know whole milliseconds only
    ) -> None:
        self.sample = sample
        self._rollout = rollout
        self._limits = rollout.config.rollout
        self._engines = engines
        self._journal = journal
        self._album = Album(rollout.chat.eyes)
        self._begun = begun
        self._returned = returned
        self._scope = scope
        self._clock = clock
        self._since = self._clock()
        self._interrupted = False
        self._known = len(sample.prompt_tokens) + sample.response_length if sample.turns else 0
        retries = EnvRetries(rollout.config.environment, rollout.environment.name, sample.env_retries)
        self._env = EpisodeEnv(rollout, row, retries)

    @property
    def request_id(self) -> str:
        """The name of the generation under way, which `abort` takes."""
        return f"{self.sample.session_id}/{len(self.sample.turns)}"

    def interrupt(self) -> None:
        """Stops the episode after its next commit; abort its generation to have that at once."""
        self._interrupted = True

    async def run(self) -> None:
        """Plays until the journal has the sample's end, or until it is interrupted.

        Raises:
            LeaseLost, BufferUnavailable: from the journal; the sample is another's, or waits to be resumed.
            UserError: a setting, the prompt or the chat template cannot work.
        """
        try:
            await self._enter()
            while self.sample.stop_reason is None and not self._interrupted:
                await self._turn()
        except EnvFatalError as error:
            await self._fail(StopReason.ENV_FAILURE, error)
        except EngineError as error:
            await self._fail(StopReason.ENGINE_FAILURE, error)
        finally:
            await self._env.close()

    async def _fail(self, reason: StopReason, error: Exception) -> None:
        logger.warning("sample %s failed: %s: %s", self.sample.sample_id, reason, error)
        await self._journal.fail(reason, str(error))
        self.sample.status, self.sample.stop_reason = reason.status, reason

    async def _enter(self) -> None:
        """Starts the environment, or brings it back to where the journal stands."""
        if not self._begun:
            self._album.begin(self.sample, await self._env.start())
            return
        known = self._album.known(self.sample)
        self._album.restore(self.sample, await self._journal.pictures(self.sample.images, known))
        turns, name = len(self.sample.turns), self._rollout.environment.name
        try:
            how = str(await self._env.come_back(self.sample))
            saved = sum(len(turn.generated) for turn in self.sample.turns)
            catalog.TOKENS_SAVED.inc(saved, cause=self._returned)
        except RestartNeeded:
            await self._restart()
            how = "restart"
        if turns:
            catalog.RESUMES.inc(environment=name, cause=self._returned, how=how)

    async def _restart(self) -> None:
        await self._journal.restart()
        self._since -= self.sample.active_seconds
        self.sample.restart()
        prompt = await self._env.start()
        same = np.array_equal(prompt.tokens, self.sample.prompt_tokens) and prompt.names == self.sample.prompt_images
        if self._begun and not same:
            raise EnvFatalError("the environment starts with another observation than the recorded one")
        self._album.begin(self.sample, prompt)

    @spanned("turn")
    async def _turn(self) -> None:
        """One pass of the loop: ends with a commit."""
        piece = Piece(NOTHING, "abort", 0.0)
        limit = tightest(self.sample, self._limits)
        try:
            async with asyncio.timeout(self._remaining_seconds()):
                piece = await self._generate(limit)
                acted = None if piece.open else await self._act(piece)
        except RestartNeeded:
            await self._restart()
        except TimeoutError:
            await self._miss_deadline(piece)
        else:
            await (self._keep_open(piece) if acted is None else self._observe(piece, acted, limit))

    def _remaining_seconds(self) -> float:
        return self._limits.deadline - self.sample.active_seconds - self._active_seconds()

    def _active_seconds(self) -> float:
        """Seconds since the last commit, which no record holds yet."""
        return self._clock() - self._since

    async def _generate(self, limit: Limit) -> Piece:
        """Continues the turn under way."""
        sample, chat = self.sample, self._rollout.chat
        reason = finish_reason(NOTHING, self._interaction(NOTHING), chat, limit.tokens, limit.tokens)
        if reason != NOTHING.finish_reason:
            return Piece(NOTHING, reason, 0.0)
        chunk = min(limit.tokens, self._limits.commit_every_tokens)
        sampling = SamplingParams(
            max_new_tokens=chunk,
            temperature=sample.temperature,
            stop_token_ids=(*chat.stop_token_ids, *chat.forbidden),
            sampling_seed=turn_seed(sample.sampling_seed, sample.next_turn),
        )
        began = self._clock()
        key = self._scope.key if self._scope else None
        generation = await self._engines.generate(
            sample.session_id, sample.tokens, sampling, images=self._album.inputs(), rid=self.request_id, extra_key=key
        )
        if self._known > generation.cached_tokens:  # of the context that an engine has computed before
            again = self._known - generation.cached_tokens
            catalog.PREFILLED_AGAIN.inc(again, environment=self._rollout.environment.name)
        self._known = generation.prompt_tokens + len(generation.tokens)
        if self._scope and (older := self._scope.older(generation)):
            catalog.OLDER_CACHE_TOKENS.inc(older)
        reason = finish_reason(generation, self._interaction(generation), chat, chunk, limit.tokens)
        return Piece(generation, reason, self._clock() - began)

    async def _keep_open(self, piece: Piece) -> None:
        """Records what a generation had that was interrupted, or is a chunk of a long turn."""
        if len(piece.generation.tokens):
            await self._commit(self._open_record(piece))
        else:
            await asyncio.sleep(ABORT_PAUSE)

    async def _act(self, piece: Piece) -> Acted:
        text = self._rollout.chat.decode(self._interaction(piece.generation))
        answer = answer_of([*self.sample.open_turn, self._open_record(piece)], text)
        began = self._clock()
        act = self._env.cut if piece.cut else self._env.step
        return Acted(text, await act(answer, self.sample), self._clock() - began)

    async def _observe(self, piece: Piece, acted: Acted, limit: Limit) -> None:
        """Ends the episode, or appends the observation; either way the turn is committed."""
        reason = self._end(piece, acted.step, limit)
        observation, encode_seconds = NOTHING_SHOWN, 0.0
        if reason is None:
            encoding = self._clock()
            observation = await self._env.show(acted.step.observation, self._interaction(piece.generation))
            encode_seconds = self._clock() - encoding
            reason = overflow(self.sample, len(piece.generation.tokens) + len(observation.tokens), self._limits)
        if reason is not None:  # an observation without room is left out whole, its images with it
            observation = NOTHING_SHOWN
        record = complete_record(
            self.sample.next_turn,
            piece,
            acted,
            observation=observation,
            encode_seconds=encode_seconds,
            env_retries=self._env.retries.turn,
            active_seconds=self._active_seconds(),
        )
        await self._commit(record, reason, observation)
        self._env.retries.turn_completed()

    def _end(self, piece: Piece, step: Step, limit: Limit) -> StopReason | None:
        """Why the episode ends here, before any observation; None when it goes on."""
        sample, limits = self.sample, self._limits
        if piece.cut:
            return limit.reason if piece.finish_reason == "length" else StopReason.IMAGE_PLACEHOLDER
        if step.ends is not None:
            return step.ends
        if sample.parse_failures + step.parse_failures > self._rollout.config.environment.max_parse_failures:
            return StopReason.PARSE_FAILURES
        return StopReason.MAX_TURNS if sample.next_turn + 1 >= limits.max_turns else None

    async def _miss_deadline(self, piece: Piece) -> None:
        """Ends the episode with what it has. Without a single token there is nothing to train, so it failed."""
        if not self.sample.response_length and not len(piece.generation.tokens):
            raise EngineError(f"no token within rollout.deadline={self._limits.deadline:g} seconds")
        record = self._open_record(piece) if len(piece.generation.tokens) else None
        await self._commit(record, StopReason.DEADLINE)

    def _open_record(self, piece: Piece) -> Turn:
        return open_record(self.sample.next_turn, piece, active_seconds=self._active_seconds())

    async def _commit(
        self, record: Turn | None, reason: StopReason | None = None, observation: Encoded = NOTHING_SHOWN
    ) -> None:
        sample = self.sample
        records: list[Record] = [] if self._begun else [start_record(sample)]
        if record is not None:
            self._album.add(observation)
            sample.append(record)
            records.append(record)
        outcome = None
        if reason is not None:
            sample.status, sample.stop_reason = reason.status, reason
            sample.reward = await self._env.score(sample)
            outcome = Outcome(reason.status, reason, sample.reward)
        await self._journal.commit(records, outcome, self._album.unrecorded())
        self._since = self._clock()
        self._begun = True

    def _interaction(self, generation: Generation) -> Int32:
        """All ids of the turn under way, int32 (g,): those of its open records, and these."""
        pieces = self.sample.open_turn
        return (
            np.concatenate([*(turn.generated for turn in pieces), generation.tokens]) if pieces else generation.tokens
        )
