"""Large reads come in bounded pieces that cover every record once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_builders import START, turn

from stream_rl.buffer.journals import CHUNK_BYTES, Stored, Totals, chunks, split
from stream_rl.errors import CorruptRecord

MEBI = 2**20


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40 * MEBI)), max_size=12))
def test_pieces_cover_every_record_once_within_the_bound(sizes: list[tuple[int, int]]) -> None:
    stored = [Stored(f"0-{index}", records, size) for index, (records, size) in enumerate(sizes)]
    covered: dict[str, list[int]] = {entry.sample: [] for entry in stored}
    for chunk in chunks(stored):
        for piece in chunk:
            covered[piece.sample] += range(piece.start, piece.stop + 1)
        assert sum(piece.size for piece in chunk) <= CHUNK_BYTES or len(chunk) == 1
    assert covered == {entry.sample: list(range(entry.records)) for entry in stored}


def test_small_journals_share_one_round_trip() -> None:
    assert len(list(chunks([Stored(f"0-{index}", 10, 1000) for index in range(64)]))) == 1


def test_a_journal_is_a_start_and_turns() -> None:
    assert split("0-0", []) == (None, ())
    start, turns = split("0-0", [START, turn(0)])
    assert start is START
    assert [t.index for t in turns] == [0]
    with pytest.raises(CorruptRecord, match="sample 0-0"):
        split("0-0", [turn(0)])
    with pytest.raises(CorruptRecord, match="sample 0-0"):
        split("0-0", [START, START])


def test_an_empty_journal_has_no_totals() -> None:
    assert Totals.parse(None) == (0, 0, 0, 0, 0)
    assert Totals.parse(b"3 454 2 10 6") == Totals(records=3, size=454, turns=2, response_length=10, generated=6)
