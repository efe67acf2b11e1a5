"""A step's episodes, all at once in this process: what producer and engine would give, by one model's forward passes.

    contexts of the live episodes ─► log-probs of the next token, once for each context that differs ─► a token for each
    a turn's end ─► the environment ─► its observation in ids, by the producer's chat form ─► the next turn

Invariant: a sample's ids, log-probs and versions are what an engine with these weights records at temperature 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from stream_rl.config import ModelConfig
from stream_rl.envs.base import EnvSample
from stream_rl.envs.guess_number import GuessNumber, build_env, prompt
from stream_rl.errors import ActionError
from stream_rl.producer.chat import load_chat_encoder
from stream_rl.sample import Group, Int32, Sample, StopReason, Turn, VersionSpan, WeightVersion

__all__ = ["GROUP_SIZE", "Player"]

GROUP_SIZE = 8
MAX_TURNS = 4
MAX_TURN_LEN = 2
"""One number and the end token."""

Context = tuple[int, ...]


class _Episode(NamedTuple):
    """A sample and its world."""

    sample: Sample
    env: GuessNumber


class _Written(NamedTuple):
    """What the model said in a turn, one entry a token."""

    tokens: list[int]
    log_probs: list[float]


class Player:
    """Plays the number game with whatever weights were loaded last.

    Args:
        folder: the model, with its tokenizer.
        seed: of the prompts and of what is drawn.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._chat = load_chat_encoder(ModelConfig(path=str(folder)))
        self._seed = seed
        self._random = torch.Generator().manual_seed(seed)
        self._version = WeightVersion(0)

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Takes published weights, under the names of a checkpoint."""
        self._model.load_state_dict(weights)
        self._version = WeightVersion(version)

    async def play(self, indices: Sequence[int]) -> list[Group]:
        """The groups with these indices, finished and scored."""
        groups = [self._group(index) for index in indices]
        live = [_Episode(one, build_env(EnvSample(one.prompt, one.label))) for group in groups for one in group.samples]
        while live:
            written = self._generate([tuple(episode.sample.tokens.tolist()) for episode in live])
            for episode, said in zip(live, written, strict=True):
                await self._turn(episode, said)
            live = [episode for episode in live if episode.sample.stop_reason is None]
        return groups

    def _group(self, index: int) -> Group:
        row = prompt(self._seed, index)
        tokens = self._chat.encode_prompt([{"role": "user", "content": row["prompt"]}])
        samples = [Sample(index, place, row["prompt"], tokens, label=row["label"]) for place in range(GROUP_SIZE)]
        return Group(index, self._version.step, samples, index)

    def _generate(self, contexts: Sequence[Context]) -> list[_Written]:
        """A turn for each context."""
        written = [_Written([], []) for _ in contexts]
        going = list(range(len(contexts)))
        for _ in range(MAX_TURN_LEN):
            log_probs = self._log_probs([(*contexts[place], *written[place].tokens) for place in going])
            drawn = torch.multinomial(log_probs.exp(), 1, generator=self._random)
            recorded = log_probs.gather(1, drawn).squeeze(1).tolist()
            for place, token, log_prob in zip(going, drawn.squeeze(1).tolist(), recorded, strict=True):
                written[place].tokens.append(token)
                written[place].log_probs.append(log_prob)
            going = [place for place in going if written[place].tokens[-1] not in self._chat.stop_token_ids]
            if not going:
                break
        return written

    @torch.no_grad()
    def _log_probs(self, contexts: Sequence[Context]) -> Tensor:
        """Of the token after each context, float32 (n, vocabulary)."""
        places = {context: place for place, context in enumerate(dict.fromkeys(contexts))}
        rows = [torch.tensor(context) for context in places]
        # Padding on the right: causal attention does not look at it.
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        last = torch.tensor([len(row) - 1 for row in rows])
        logits = self._model(input_ids=padded, use_cache=False).logits[torch.arange(len(rows)), last]
        return torch.log_softmax(logits, dim=-1)[[places[context] for context in contexts]]

    async def _turn(self, episode: _Episode, said: _Written) -> None:
        """Acts, and appends the turn with what the model reads next; the last one ends the sample."""
        sample, generated = episode.sample, np.array(said.tokens, np.int32)
        observation, reward, reason = await self._act(episode, generated)
        if reason is None and sample.next_turn + 1 == MAX_TURNS:
            reason = StopReason.MAX_TURNS
        shown = np.zeros(0, np.int32) if reason else self._shown(episode, observation, generated)
        span = VersionSpan(0, len(generated), self._version)
        log_probs = np.array(said.log_probs, np.float32)
        sample.append(Turn(sample.next_turn, generated, log_probs, shown, (span,), reward=reward))
        if reason is not None:
            sample.status, sample.stop_reason = reason.status, reason
            sample.reward = sum(turn.reward for turn in sample.turns)

    async def _act(self, episode: _Episode, generated: Int32) -> tuple[str, float, StopReason | None]:
        """The world's answer, the turn's reward, and why the episode ends here."""
        text = self._chat.decode(generated)
        if generated[-1] not in self._chat.stop_token_ids:
            info = await episode.env.cut(text)
            return "", info["reward"], StopReason.MAX_TURN_LEN
        try:
            observation, done, info = await episode.env.step(text)
        except ActionError as error:
            return str(error), error.reward, None
        return observation["obs_str"], info["reward"], StopReason.ENV_DONE if done else None

    def _shown(self, episode: _Episode, observation: str, generated: Int32) -> Int32:
        message = episode.env.format_observation({"obs_str": observation})
        return self._chat.encode_observation([message], generated)
