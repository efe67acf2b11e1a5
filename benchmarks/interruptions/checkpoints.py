"""Two checkpoints that are published in turn, and what transformers says of tokens under each.

An update moves every weight by a normal draw, MOVE of its matrix's spread: log-probs change as they do in training.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from interruptions.load import Sequence
from stream_rl.models.tiny_text import make_tiny_text
from stream_rl.sample import Float32, WeightVersion

__all__ = ["Checkpoints", "Judged"]

MOVE = 0.02
NOTHING = np.zeros(0, np.float32)


class Judged(NamedTuple):
    """Of some tokens, float32 (n,): how far the engine's log-probs are off, and how far the update moved them."""

    error: Float32
    moved: Float32


class Checkpoints:
    """Writes both below `folder`, with one thread and by a seed. Version v has the weights of checkpoint v mod 2."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folders = [folder / "even", folder / "odd"]
        make_tiny_text(self._folders[0], seed=seed)
        model = AutoModelForCausalLM.from_pretrained(self._folders[0], dtype=torch.float32)
        # Sequences end by their length alone.
        model.config.eos_token_id = model.generation_config.eos_token_id = None
        self._models = []
        random = torch.Generator().manual_seed(seed)
        for path in self._folders:
            model.save_pretrained(path)
            self._models.append(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32))
            with torch.no_grad():
                for weight in model.parameters():
                    if weight.dim() > 1:
                        weight.add_(torch.randn(weight.shape, generator=random), alpha=MOVE * float(weight.std()))

    def folder(self, version: WeightVersion) -> Path:
        """Where a version's weights are."""
        return self._folders[version.step % 2]

    def judge(self, sequences: Several[Sequence], *, interrupted: bool) -> Judged:
        """Compares the engine's log-probs with a fresh forward of the weights that each token is stamped with.

        Args:
            sequences: with at least one token each.
            interrupted: judge only what was written after an update inside its sequence, instead of every token.
        """
        parts = [self._judge(sequence, interrupted) for sequence in sequences]
        return Judged(*(np.concatenate([NOTHING, *(part[place] for part in parts)]) for place in range(2)))

    def _judge(self, sequence: Sequence, interrupted: bool) -> Judged:
        versions = sequence.versions
        after = versions.count(versions[0]) if interrupted else 0
        stamped = np.array([version.step % 2 for version in versions[after:]])
        even, odd = (self._log_probs(model, sequence)[after:] for model in self._models)
        expected = np.where(stamped == 0, even, odd)
        return Judged(np.abs(sequence.log_probs[after:] - expected), np.abs(even - odd))

    @torch.no_grad()
    def _log_probs(self, model: torch.nn.Module, sequence: Sequence) -> Float32:
        ids = torch.from_numpy(sequence.tokens).long()[None]
        first = len(sequence.prompt)
        log_probs = model(input_ids=ids, use_cache=False).logits[0, first - 1 : -1].log_softmax(-1)
        chosen: Float32 = log_probs.gather(1, ids[0, first:, None])[:, 0].numpy()
        return chosen
