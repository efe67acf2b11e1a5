"""Token sources."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from stream_rl.testing import scripted, seeded

IDS = st.lists(st.integers(0, 31), min_size=1, max_size=20)


@given(IDS, st.integers(0, 2**31), st.integers(0, 12))
def test_a_seeded_source_goes_on_where_it_was_cut(prompt: list[int], seed: int, cut: int) -> None:
    source = seeded(seed, 32)
    whole = list(islice(source(prompt), 12))
    first = [token for token, _ in islice(source(prompt), cut)]
    assert whole[cut:] == list(islice(source(prompt + first), 12 - cut))
    assert all(0 <= token < 32 and log_prob < 0 for token, log_prob in whole)


def test_seeds_and_prompts_matter() -> None:
    def ids(seed: int, prompt: list[int]) -> list[tuple[int, float]]:
        return list(islice(seeded(seed, 32)(prompt), 12))

    assert ids(0, [1, 2]) != ids(1, [1, 2]) != ids(1, [2, 1])


def test_replies_are_dealt_in_the_order_of_arrival() -> None:
    source = scripted([1, 2], [3], log_prob=-1.0)
    first, second, third = source([0]), source([0]), source([0])
    assert list(second) == [(3, -1.0)]
    assert list(first) == list(third) == [(1, -1.0), (2, -1.0)]
