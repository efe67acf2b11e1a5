"""Three ways from hidden states to log-probs and back: all logits at once, a chunk at a time by autograd, and ours."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from learners.learner import peak_memory, reset_peak_memory
from learners.work import Cost
from stream_rl.consumer import head as ours

WAYS = ("whole", "checkpointed", "ours")


class Heads:
    """One head and its hidden states; lives in a process of its own."""

    def __init__(self, places: int, hidden: int, vocabulary: int, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._device = torch.device(device)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        random = torch.Generator().manual_seed(0)
        self._states = (0.5 * torch.randn(places, hidden, generator=random)).to(device, dtype).requires_grad_()
        self._weight = (0.1 * torch.randn(vocabulary, hidden, generator=random)).to(device, dtype).requires_grad_()
        self._targets = torch.randint(0, vocabulary, (places,), generator=random).to(device)
        self._temperatures = torch.ones(places, device=device)
        self._ways: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
            "whole": self._whole, "checkpointed": self._checkpointed, "ours": self._ours
        }  # fmt: skip

    def run(self, way: str, chunk: int) -> Cost:
        """Log-probs with a gradient, entropies without, and back."""
        ours.LOGITS_PER_CHUNK[self._device.type] = chunk
        self._states.grad = self._weight.grad = None
        before = reset_peak_memory(self._device)
        started = time.perf_counter()
        self._ways[way]()[0].mean().backward()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return Cost(time.perf_counter() - started, peak_memory(self._device) - before)

    def _score(self, states: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        logits = (states @ self._weight.t()).float() / temperatures.unsqueeze(1)
        distribution = torch.log_softmax(logits, dim=-1)
        chosen = distribution.gather(1, targets.unsqueeze(1)).squeeze(1)
        return chosen, -(distribution.exp() * distribution).sum(-1)

    def _whole(self) -> tuple[Tensor, Tensor]:
        return self._score(self._states, self._targets, self._temperatures)

    def _checkpointed(self) -> tuple[Tensor, Tensor]:
        rows = max(1, ours.LOGITS_PER_CHUNK[self._device.type] // len(self._weight))
        chunks = zip(*(part.split(rows) for part in (self._states, self._targets, self._temperatures)), strict=True)
        pieces = [checkpoint(self._score, *chunk, use_reentrant=False) for chunk in chunks]
        return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])

    def _ours(self) -> tuple[Tensor, Tensor]:
        head = ours.Head(self._weight, None)
        return ours.log_probs_of_states(head, self._states, self._targets, self._temperatures)
