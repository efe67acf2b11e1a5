"""Log-probs of hidden states: what torch's autograd makes of the whole logits, in chunks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stream_rl.consumer import head as head_module
from stream_rl.consumer.head import Head, log_probs_of_states

PLACES, HIDDEN, VOCABULARY = 37, 8, 23
HEADS = {
    "plain": {},
    "bias": {"bias": True},
    "scaled": {"scale": 0.25},
    "capped": {"cap": 3.0},
    "capped and scaled": {"cap": 2.0, "scale": 1.5, "bias": True},
}


def made(dtype: torch.dtype = torch.float32, *, bias: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """States, weight and bias that want gradients."""
    random = torch.Generator().manual_seed(0)
    states, weight, shift = (
        (scale * torch.randn(*shape, generator=random)).to(dtype).requires_grad_()
        for scale, shape in ((1.0, (PLACES, HIDDEN)), (1.5, (VOCABULARY, HIDDEN)), (1.0, (VOCABULARY,)))
    )
    return states, weight, shift if bias else None


def asked() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    return torch.randint(0, VOCABULARY, (PLACES,), generator=random), 0.5 + torch.rand(PLACES, generator=random)


def by_autograd(head: Head, states: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, in float64."""
    logits = states.double() @ head.weight.double().t()
    logits = logits if head.bias is None else logits + head.bias.double()
    logits = logits * head.scale
    logits = logits if head.cap is None else head.cap * torch.tanh(logits / head.cap)
    distribution = torch.log_softmax(logits / temperatures.double().unsqueeze(1), dim=-1)
    return distribution[torch.arange(len(targets)), targets], -(distribution.exp() * distribution).sum(-1)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five places a chunk: the last chunk is smaller."""
    monkeypatch.setitem(head_module.LOGITS_PER_CHUNK, "cpu", 5 * VOCABULARY)


@pytest.mark.parametrize("of_entropies", [0.0, 0.3, None])
@pytest.mark.parametrize("changes", HEADS.values(), ids=HEADS)
def test_values_and_gradients_are_those_of_whole_logits(changes: dict[str, float], of_entropies: float | None) -> None:
    changes = dict(changes)
    states, weight, bias = made(bias=bool(changes.pop("bias", False)))
    head = Head(weight, bias, **changes)
    wants = [tensor for tensor in (states, weight, bias) if tensor is not None]
    upstream = torch.randn(PLACES, generator=torch.Generator().manual_seed(2))
    results = []
    for way in (log_probs_of_states, by_autograd):
        log_probs, entropies = way(head, states, *asked())
        loss = (upstream * log_probs).sum()
        loss = loss if of_entropies is None else loss + of_entropies * (upstream.flip(0) * entropies).sum()
        results.append((log_probs, entropies, *torch.autograd.grad(loss, wants)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), expected.double(), atol=1e-5, rtol=1e-5)


def test_entropies_alone_have_their_gradient() -> None:
    states, weight, _ = made()
    (found,), (expected,) = (
        torch.autograd.grad(way(Head(weight, None), states, *asked())[1].sum(), [states])
        for way in (log_probs_of_states, by_autograd)
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_frozen_head_has_no_gradient() -> None:
    states, weight, _ = made()
    log_probs_of_states(Head(weight.detach(), None), states, *asked())[0].sum().backward()
    assert states.grad is not None
    assert weight.grad is None


def test_half_precision_is_widened_before_it_is_summed() -> None:
    states, weight, _ = made(torch.bfloat16)
    found = log_probs_of_states(Head(weight, None), states, *asked())
    logits = (states @ weight.t()).detach().float()
    expected = by_autograd(Head(torch.eye(VOCABULARY), None), logits, *asked())
    for value, exact in zip(found, expected, strict=True):
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), exact.double(), atol=1e-5, rtol=1e-5)
    found[0].sum().backward()
    assert states.grad is not None
    assert weight.grad is not None
    assert states.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_no_places_have_no_gradient_but_take_part() -> None:
    states, weight, _ = made()
    log_probs, entropies = log_probs_of_states(
        Head(weight, None), states[:0], torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    )
    (log_probs.sum() + entropies.sum()).backward()
    assert weight.grad is not None
    assert not weight.grad.any()


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=6), st.floats(0.3, 2.0), st.data())
def test_log_probs_and_entropies_are_of_the_tempered_distribution(
    logits: list[float], temperature: float, data: st.DataObject
) -> None:
    target = data.draw(st.integers(0, len(logits) - 1))
    peak = max(logits)
    weights = [math.exp((logit - peak) / temperature) for logit in logits]
    shares = [weight / sum(weights) for weight in weights]
    head = Head(torch.tensor(logits).unsqueeze(1), None)
    log_prob, entropy = log_probs_of_states(head, torch.ones(1, 1), torch.tensor([target]), torch.tensor([temperature]))
    assert float(log_prob) == pytest.approx((logits[target] - peak) / temperature - math.log(sum(weights)), abs=1e-4)
    assert float(entropy) == pytest.approx(-sum(share * math.log(share) for share in shares if share), abs=1e-4)


class Largest(TorchDispatchMode):
    """Notes the numbers in the largest tensor that anything makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else [found]:
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return found


def test_nothing_is_larger_than_a_chunk() -> None:
    states, weight, _ = made()
    with Largest() as largest:
        log_probs, entropies = log_probs_of_states(Head(weight, None), states, *asked())
        (log_probs.sum() + entropies.sum()).backward()
    inputs = max(states.numel(), weight.numel())
    assert largest.numbers == max(5 * VOCABULARY, inputs) < PLACES * VOCABULARY
