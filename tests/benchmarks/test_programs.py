"""Each benchmark runs, in its smallest form, and writes the figures that it prints."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PEERS = ["tq-1", "tq-8"] if importlib.util.find_spec("transfer_queue") else []


@pytest.fixture
def benchmark(tmp_path: Path) -> Any:
    """`benchmark("buffer.py", ...)` runs a program with --quick and --seed; its figures and what it printed."""

    def run(program: str, *arguments: str) -> tuple[dict[str, Any], str]:
        file = tmp_path / "figures.json"
        shared = ["--quick", "--seed", "0", "--json", str(file)]
        command = [sys.executable, str(BENCHMARKS / program), *shared, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return orjson.loads(file.read_bytes()), done.stdout

    return run


def test_every_benchmark_is_run_here() -> None:
    run_here = set(re.findall(r'benchmark\(\s*"(\w+\.py)"', Path(__file__).read_text()))
    assert run_here == {path.name for path in BENCHMARKS.glob("*.py")}


@pytest.mark.parametrize("contenders", [["bare", "ours", "stream", "mp-bytes"], ["ours", "ray", *PEERS]])
def test_finished_samples(benchmark: Any, contenders: list[str]) -> None:
    figures, printed = benchmark(
        "buffer.py", "--only", "samples", "--contenders", *contenders,
        "--sizes", "2048", "--rounds", "1", "--seconds", "0.02",
    )  # fmt: skip
    rounds = figures["samples"]["2048"]
    assert sorted(rounds) == sorted(contenders)
    assert all(one["rate"] > 0 and one["cpu"] > 0 for name in contenders for one in rounds[name])
    assert "Finished samples of 2k tokens" in printed


def test_turns_images_and_memory(benchmark: Any) -> None:
    figures, printed = benchmark(
        "buffer.py", "--only", "turns", "images", "memory", "--contenders", "ours", "--rounds", "1", "--live", "16"
    )
    assert [len(episode) for episode in figures["turns"]["episodes"]["ours"]] == [32]
    assert figures["turns"]["written"] > 32 * 1024 * 4
    assert figures["memory"]["redis_bytes_per_token"] > 4
    assert "bytes written / payload" in {bar["bar"] for bar in figures["bars"]}
    assert "Bars: paired medians of this run" in printed


def test_deaths_cost_us_nothing_and_a_raw_queue_everything(benchmark: Any) -> None:
    figures, _ = benchmark("buffer.py", "--only", "losses", "--contenders", "ours", "mp-bytes", "--samples", "32")
    ours, raw = figures["losses"]
    assert ours["obtained"] == {"producer": 32, "broker": 32, "consumer": 32}
    assert raw["obtained"]["consumer"] == 0


def test_a_pipeline_keeps_its_promise_through_deaths(benchmark: Any) -> None:
    figures, _ = benchmark("crash.py", "--kinds", "trainer", "redis, always", "--deaths", "2")
    for kind in ("trainer", "redis, always"):
        assert figures[kind]["deaths"] == 1
        assert figures[kind]["lost"] == figures[kind]["twice"] == figures[kind]["changed"] == 0
        assert figures[kind]["committed"] > 0
        assert figures[kind]["kept"]


def test_the_engine_client(benchmark: Any) -> None:
    figures, _ = benchmark("engine_client.py", "--concurrency", "16", "--tokens", "2")
    assert set(figures) == {"bare aiohttp", "EngineClient"}


def test_schedules(benchmark: Any) -> None:
    figures, printed = benchmark(
        "scheduling.py", "--policies", "ours", "over-sampling", "--steps", "2", "--skipped", "1"
    )
    for name in ("ours", "over-sampling"):
        (one,) = figures["policies"][name]
        assert one["tokens_per_second"] > 0
        assert one["dropped"] == 0
        assert 0 <= one["trainer_idle"] < 1
    assert figures["policies"]["ours"][0]["group_lag_max"] <= 12
    assert "of bound" in printed


def test_live_episodes(benchmark: Any) -> None:
    figures, printed = benchmark("producer.py", "--live", "64", "--rounds", "1", "--prompt", "8", "--tokens", "4")
    for live in ("1", "64"):
        assert sorted(figures[live]) == ["bare", "producer", "requests"]
        assert all(one["per_second"] > 0 and one["cpu_ms"] > 0 for (one,) in figures[live].values())
    assert "64 live: turns/s, producer / bare" in {bar["bar"] for bar in figures["bars"]}
    assert "Episodes of 20 turns" in printed


def test_lag_in_learning(benchmark: Any, tmp_path: Path) -> None:
    arguments = ("--steps", "5", "--corrections", "none", "decoupled", "--runs", str(tmp_path / "runs"))
    figures, printed = benchmark("learning.py", *arguments, "--plot", str(tmp_path / "plot.html"))
    plain, decoupled = figures["runs"]
    assert (plain["run"]["correction"], decoupled["run"]["correction"]) == ("none", "decoupled")
    for run in (plain, decoupled):
        assert run["lags"] == [0.0, 1.0, 2.0, 2.0, 2.0]
        assert all(0 <= reward <= 1 for reward in run["rewards"])
    # Until their weights differ, both play the same prompts with the same draws.
    assert plain["rewards"][:3] == decoupled["rewards"][:3]
    assert set(plain["clipped"]) == {0.0}
    assert "last 5 steps" in printed
    assert "Plotly" in (tmp_path / "plot.html").read_text()
    again, _ = benchmark("learning.py", *arguments)
    assert again["runs"] == figures["runs"]


def test_training_steps(benchmark: Any) -> None:
    figures, printed = benchmark(
        "trainer.py", "--threads", "1", "--rounds", "1", "--sigmas", "1", "--groups", "1", "--median", "16",
        "--budget", "128", "--places", "64", "--vocabulary", "512", "--long", "512",
    )  # fmt: skip
    steps = figures["steps"]["sigma 1"]
    assert {"ours, packed", "ours, padded", "TRL, 8 rows, its default"} <= steps.keys()
    assert all(one["seconds"] > 0 for name, times in steps.items() if "," in name for one in times)
    assert len(figures["heads"]) == 5
    assert sorted(figures["long"]) == ["computed anew", "kept"]
    assert all(one["predicted"] > 0 and one["peak"] > 0 for one in figures["long"].values())
    assert "Bars: paired medians of this run" in printed


def test_ways_to_interrupt(benchmark: Any) -> None:
    figures, printed = benchmark("interruption.py", "--contexts", "short", "--policies", "retract", "in_place")
    played = {policy: one for policy, (one,) in figures["contexts"]["short"].items()}
    assert list(played) == list(figures["medians"]["short"]) == ["none", "retract", "in_place"]
    assert all(one["tokens_per_second"] > 0 and one["judged"] > 0 for one in played.values())
    assert played["retract"]["error_max"] < 1e-4 < played["in_place"]["error_mean"]
    assert played["none"]["prefilled_again"] == played["in_place"]["prefilled_again"] == 0
    assert played["retract"]["prefilled_again"] > 0
    assert "short contexts" in printed


def test_requests_with_pictures(benchmark: Any) -> None:
    figures, printed = benchmark("image_requests.py", "--contenders", "pictures", "--episodes", "8")
    (rate,) = figures["pictures"]
    assert rate > 0
    assert "of the first" in printed
