"""From hidden states to log-probs, a chunk of places at a time: the logits of all places never exist together.

The backward pass makes a chunk's logits again and turns them into their gradient where they lie. Beside what goes in
and out, both passes hold two float32 tensors of `LOGITS_PER_CHUNK` numbers, whatever the number of places. The backward
pass has a third where logits are capped, and one in the states' dtype where that is narrower.

With z = logits / temperature, p = softmax(z), H its entropy and g the gradients of what came out:

    d log p_t / d z_j  =  [j = t] - p_j            d H / d z_j  =  -p_j (log p_j + H)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

__all__ = ["Head", "log_probs_of_states"]

LOGITS_PER_CHUNK = {"cpu": 1 << 20, "cuda": 1 << 28}
"""Numbers in a chunk of logits: what a core's caches hold; on CUDA 1 GiB of float32, for large matrix products."""


class Head(NamedTuple):
    """What makes logits of hidden states: cap * tanh(scale * (states @ weight.T + bias) / cap).

    weight (vocabulary, hidden), bias (vocabulary,) or None; without a cap the tanh is left out.
    """

    weight: Tensor
    bias: Tensor | None
    scale: float = 1.0
    cap: float | None = None


def log_probs_of_states(head: Head, states: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets, and the entropy of what they were sampled from: softmax(logits / temperature).

    Args:
        head: gives the logits, in the dtype of `states`.
        states: (k, hidden), any float dtype; beyond the matrix product the arithmetic is in float32.
        targets: int64 (k,).
        temperatures: float32 (k,), recorded with each token's sample.

    Returns:
        Two float32 tensors (k,): log-probs and entropies, in nats.
    """
    asked = _Asked(targets, temperatures, head.scale, head.cap)
    found: tuple[Tensor, Tensor] = _LogProbs.apply(states, head.weight, head.bias, asked)  # type: ignore[no-untyped-call]
    return found


class _Asked(NamedTuple):
    """What is asked of n hidden states: targets (n,), at temperatures (n,), of logits that are scaled and capped."""

    targets: Tensor
    temperatures: Tensor
    scale: float
    cap: float | None

    def of(self, part: slice) -> _Asked:
        return self._replace(targets=self.targets[part], temperatures=self.temperatures[part])


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, asked: _Asked) -> tuple[Tensor, Tensor]:
        log_probs, entropies, normalisers = (torch.empty_like(asked.temperatures) for _ in range(3))
        for part in _chunks(len(states), weight):
            here = asked.of(part)
            scores = _scores(states[part], weight, bias, here)
            peaks = scores.amax(dim=-1, keepdim=True)
            scores -= peaks
            chosen = scores.gather(1, here.targets.unsqueeze(1)).squeeze(1)
            exponents = scores.exp()
            totals = exponents.sum(dim=-1)
            log_totals = totals.log()
            log_probs[part] = chosen - log_totals
            entropies[part] = log_totals - torch.linalg.vecdot(exponents, scores) / totals
            normalisers[part] = log_totals + peaks.squeeze(1)
        ctx.save_for_backward(states, weight, bias, normalisers, entropies)
        ctx.asked = asked
        ctx.set_materialize_grads(False)
        return log_probs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_log_probs: Tensor | None, of_entropies: Tensor | None) -> tuple[Tensor | None, ...]:
        states, weight, bias, normalisers, entropies = ctx.saved_tensors
        for_states = torch.empty_like(states)
        # Sums over chunks are float32: there may be a hundred, more than bfloat16's digits carry.
        for_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for_bias = torch.zeros_like(bias, dtype=torch.float32) if ctx.needs_input_grad[2] else None
        for part in _chunks(len(states), weight):
            here = ctx.asked.of(part)
            scores = _scores(states[part], weight, bias, here)
            slope = _slope(scores, here)
            scores -= normalisers[part].unsqueeze(1)
            upstream = [None if given is None else given[part] for given in (of_log_probs, of_entropies)]
            wide = _by_scores(scores, here.targets, upstream, entropies[part]).mul_(slope)
            gradient = wide.to(states.dtype)
            torch.mm(gradient, weight, out=for_states[part])
            if for_weight is not None:
                _add_product(for_weight, gradient, states[part])
            if for_bias is not None:
                for_bias += wide.sum(dim=0)
        sums = (None if total is None else total.to(weight.dtype) for total in (for_weight, for_bias))
        return for_states, *sums, None


def _chunks(places: int, weight: Tensor) -> list[slice]:
    rows = max(1, LOGITS_PER_CHUNK[weight.device.type] // len(weight))
    return [slice(start, min(start + rows, places)) for start in range(0, places, rows)]


def _scores(states: Tensor, weight: Tensor, bias: Tensor | None, asked: _Asked) -> Tensor:
    """Logits over temperature, float32 (n, vocabulary), in memory of its own."""
    scores, scale = functional.linear(states, weight, bias).float(), asked.scale
    if asked.cap is not None:
        scores.mul_(scale / asked.cap).tanh_().mul_(asked.cap)
        scale = 1.0
    return scores.mul_((scale / asked.temperatures).unsqueeze(1))


def _slope(scores: Tensor, asked: _Asked) -> Tensor:
    """The derivative of the scores, as `_scores` gave them, by the head's raw logits: (n, 1), or (n, vocabulary)."""
    temperatures = asked.temperatures.unsqueeze(1)
    slope = asked.scale / temperatures
    return slope if asked.cap is None else slope * (1.0 - (scores * (temperatures / asked.cap)).square_())


def _by_scores(log_distribution: Tensor, targets: Tensor, upstream: list[Tensor | None], entropies: Tensor) -> Tensor:
    """The gradient by the scores, from log p (n, vocabulary), which is overwritten when entropies have a gradient."""
    of_log_probs, of_entropies = (None if given is None else given.unsqueeze(1) for given in upstream)
    gradient = log_distribution.exp().neg_()
    if of_entropies is not None:
        log_distribution.add_(entropies.unsqueeze(1)).mul_(of_entropies)
        gradient.mul_(log_distribution if of_log_probs is None else log_distribution.add_(of_log_probs))
    elif of_log_probs is not None:
        gradient.mul_(of_log_probs)
    if of_log_probs is not None:
        gradient.scatter_add_(1, targets.unsqueeze(1), of_log_probs)
    return gradient


def _add_product(total: Tensor, gradient: Tensor, states: Tensor) -> None:
    if gradient.dtype == total.dtype:
        total.addmm_(gradient.t(), states)
    else:
        total += gradient.t() @ states
