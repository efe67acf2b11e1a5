"""Pixel values on disk: shared by ranks and starts, bounded, and made again when they are not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.errors import TrainingError
from stream_rl.multimodal.pixel_files import PixelFiles, Pixels

HEAD = 100
"""Bytes of a file besides its tensors, at most."""


def pixels(count: int = 1000, value: float = 1.0) -> Pixels:
    """Of 4 bytes each."""
    return {"pixel_values": torch.full((count, 1), value)}


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def names(folder: Path) -> set[str]:
    return {path.stem for path in folder.iterdir()}


def age(folder: Path, name: str, seconds: int) -> None:
    """Makes a file as old as if it was used so long ago."""
    os.utime(folder / name, (1e9 - seconds, 1e9 - seconds))


def test_what_one_rank_wrote_another_reads(tmp_path: Path) -> None:
    PixelFiles(tmp_path / "pixels", 10**6).put("a", pixels(value=7.0))

    found = PixelFiles(tmp_path / "pixels", 10**6).get("a")

    assert found is not None
    assert torch.equal(found["pixel_values"], pixels(value=7.0)["pixel_values"])


def test_what_is_not_there_or_torn_is_none(tmp_path: Path) -> None:
    files = PixelFiles(tmp_path, 10**6)
    (tmp_path / "b.safetensors").write_bytes(b"torn")

    assert files.get("a") is None
    assert files.get("b") is None


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    files = PixelFiles(tmp_path, 3 * (4000 + HEAD) * 16 // 15 + 16)
    for number, name in enumerate("abc"):
        files.put(name, pixels())
        age(tmp_path, f"{name}.safetensors", 100 - number)
    assert files.get("a") is not None

    files.put("d", pixels())

    assert names(tmp_path) == {"a", "c", "d"}


def test_what_an_earlier_start_left_and_what_a_killed_rank_left_half_written_counts_and_goes(tmp_path: Path) -> None:
    PixelFiles(tmp_path, 10**6).put("a", pixels())
    (tmp_path / ".b.4711").write_bytes(bytes(5000))
    age(tmp_path, ".b.4711", 100)

    PixelFiles(tmp_path, 6000)

    assert names(tmp_path) == {"a"}


def test_one_that_is_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    PixelFiles(tmp_path, 1000).put("a", pixels())

    assert names(tmp_path) == set()


def test_a_half_written_file_that_another_rank_took_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = PixelFiles(tmp_path, 10**6)
    monkeypatch.setattr("stream_rl.multimodal.pixel_files.save_file", lambda *_: None)

    files.put("a", pixels())

    assert files.get("a") is None


def test_a_full_disk_names_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("stream_rl.multimodal.pixel_files.save_file", full)
    with pytest.raises(TrainingError, match=r"MiB are free: set multimodal\.store to recompute.*No space left"):
        PixelFiles(tmp_path, 10**6).put("a", pixels())


@given(
    st.integers(20_000, 100_000),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(1, 4000)), max_size=30),
)
def test_two_ranks_never_hold_more_than_the_limit_and_a_sixteenth(
    tmp_path_factory: pytest.TempPathFactory, limit: int, writes: list[tuple[int, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("pixels")
    ranks = [PixelFiles(folder, limit) for _ in range(2)]
    largest = 0
    for rank, name, count in writes:
        ranks[rank].put(str(name), pixels(count))
        largest = max(largest, 4 * count + HEAD)
        assert size(folder) <= limit * 17 / 16 + len(ranks) * HEAD * 16 + largest
