"""Whatever is kept and asked for, what is there are the newest that the limit holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stream_rl.multimodal.recent import Recent

LIMIT = 20
USES = st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, LIMIT + 5)))


@given(USES)
def test_the_newest_stay_as_far_as_the_limit_holds_them(uses: list[tuple[bool, int, int]]) -> None:
    recent: Recent[int, bytes] = Recent(LIMIT, len)
    model: list[tuple[int, bytes]] = []
    for keeps, key, size in uses:
        known = next((value for name, value in model if name == key), None)
        if keeps:
            value = bytes(size)
            assert recent.keep(key, value) is (value if known is None else known)
            model = [entry for entry in model if entry[0] != key] + [(key, value if known is None else known)]
            while sum(len(value) for _, value in model) > LIMIT:
                del model[0]
        else:
            assert recent.get(key) is known
            if known is not None:
                model = [entry for entry in model if entry[0] != key] + [(key, known)]
    assert {key: recent.get(key) for key in range(6)} == {key: dict(model).get(key) for key in range(6)}
