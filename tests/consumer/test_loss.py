"""Losses against scalar arithmetic that is written down a second time, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.consumer.loss import gspo, kl_divergence, ppo_clip

NATS = st.floats(-5, 0)
ADVANTAGE = st.floats(-3, 3)


def clip_by_cases(log_prob: float, rollout: float, advantage: float, low: float, high: float) -> float:
    """The clipped loss as the paper tells it: an improvement beyond the bound is worth no more than the bound."""
    ratio = math.exp(log_prob - rollout)
    if advantage >= 0:
        return -min(ratio, 1 + high) * advantage
    return -max(ratio, 1 - low) * advantage


@given(NATS, NATS, ADVANTAGE, st.floats(0.05, 0.5), st.floats(0.05, 0.5))
def test_clip_equals_the_cases(log_prob: float, rollout: float, advantage: float, low: float, high: float) -> None:
    tensors = [torch.tensor([value], dtype=torch.float64) for value in (log_prob, rollout, advantage)]
    result = ppo_clip(*tensors, clip_low=low, clip_high=high)
    assert float(result.loss) == pytest.approx(clip_by_cases(log_prob, rollout, advantage, low, high), abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [(1.5, 1.0, True), (0.5, 1.0, False), (1.5, -1.0, False), (0.5, -1.0, True), (1.0, 1.0, False), (1.25, 1.0, False)],
)
def test_a_clipped_token_has_no_gradient(ratio: float, advantage: float, clipped: bool) -> None:
    log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
    result = ppo_clip(log_prob, torch.zeros(1), torch.tensor([advantage]), clip_low=0.2, clip_high=0.3)
    (gradient,) = torch.autograd.grad(result.loss.sum(), log_prob)
    assert bool(result.clipped) is clipped
    assert float(gradient) == pytest.approx(0.0 if clipped else -ratio * advantage)


def test_gspo_is_the_clipped_surrogate_of_sequences_geometric_mean_ratios() -> None:
    generator = torch.Generator().manual_seed(0)
    counts, advantages = torch.tensor([3, 1, 6, 4, 2, 5]), torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, -2.0]).double()
    rows = torch.arange(6).repeat_interleave(counts)
    old = torch.randn(len(rows), generator=generator, dtype=torch.float64)
    new = (old + 0.5 * torch.randn(len(rows), generator=generator, dtype=torch.float64)).requires_grad_()
    found = gspo(new, old, advantages[rows], rows, counts.double(), clip_low=0.1, clip_high=0.2)
    mean = torch.stack([part.mean() for part in found.loss.split(counts.tolist())]).mean()
    (gradient,) = torch.autograd.grad(mean, new)
    ratios = torch.stack([part.mean().exp() for part in (new - old).split(counts.tolist())])
    surrogate = torch.minimum(ratios * advantages, ratios.clamp(0.9, 1.2) * advantages)
    (wanted,) = torch.autograd.grad(-surrogate.mean(), new)
    assert float(mean.detach()) == pytest.approx(-float(surrogate.detach().mean()))
    torch.testing.assert_close(gradient, wanted)
    assert 0 < found.clipped.sum() < len(rows)


@pytest.mark.parametrize(("estimator", "unbiased"), [("k1", True), ("k2", False), ("k3", True)])
def test_estimates_of_a_divergence(estimator: str, unbiased: bool) -> None:
    policy, reference = (
        torch.log_softmax(torch.tensor(logits, dtype=torch.float64), 0)
        for logits in ([0.3, -1.0, 0.8, 0.0], [0.1, 0.5, -0.7, 0.2])
    )
    estimates = kl_divergence(policy, reference, estimator)  # type: ignore[arg-type]
    divergence = float((policy.exp() * (policy - reference)).sum())
    assert (float((policy.exp() * estimates).sum()) == pytest.approx(divergence, rel=1e-9)) is unbiased
    assert bool((estimates < 0).any()) is (estimator == "k1")
    # What the mean of a loss moves when tokens are sampled from the policy itself.
    logits = torch.tensor([0.3, -1.0, 0.8, 0.0], dtype=torch.float64, requires_grad=True)
    moving = torch.log_softmax(logits, 0)
    weighted = (policy.exp() * kl_divergence(moving, reference, estimator)).sum()  # type: ignore[arg-type]
    (found,) = torch.autograd.grad(weighted, logits, retain_graph=True)
    (wanted,) = torch.autograd.grad((moving.exp() * (moving - reference)).sum(), logits, retain_graph=True)
    assert torch.allclose(found, wanted) is (estimator == "k2")
    assert torch.allclose(found, torch.zeros(4, dtype=torch.float64)) is (estimator == "k1")
    weighted = (moving.exp() * kl_divergence(moving, reference, estimator)).sum()  # type: ignore[arg-type]
    (found,) = torch.autograd.grad(weighted, logits, retain_graph=True)
    assert torch.allclose(found, wanted) is (estimator != "k2")
