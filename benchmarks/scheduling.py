"""What a schedule costs: ours beside five others, on the real pipeline, with engines and trainer that only take time.

Valkey, producer, turn loop, HTTP and weight updates are real; the engines' decoding is simulated in the time that it
would take, shared among requests, with heavy tails of turns, tokens and environment steps. The policies take turns,
round by round. The bound is what the slower of engines and trainer could do without a pause but for weight updates.

    python benchmarks/scheduling.py                    all policies, and the simulator's check: 15 minutes
    python benchmarks/scheduling.py --quick            fewer steps, too fast for the pipeline: nothing is judged
    python benchmarks/scheduling.py --policies sync ours
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
from collections import defaultdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from measures import bars, command_line
from rich.console import Console
from schedules import engine, figures
from schedules.figures import Bounds
from schedules.pipeline import Pipelines, Played
from schedules.policies import OURS, POLICIES, Policy
from schedules.scale import GROUP_SIZE, GROUPS_PER_STEP, Scale

from stream_rl.buffer import EmbeddedServer
from stream_rl.config import Config
from stream_rl.models import make_model
from stream_rl.tuning import Fit, Plan, fit_run, simulate

SLOW = ("sync", "one step off")
"""Policies whose steps take several times as long: they play half as many."""
START_SECONDS = 120


class Benchmark:
    """All rounds of all policies."""

    def __init__(self, args: argparse.Namespace, folder: Path, buffer_url: str, orders: Connection) -> None:
        self._args = args
        self._orders = orders
        make_model("tiny-text", folder / "model")
        self._pipelines = Pipelines(folder, folder / "model", buffer_url, self._order)

    def _order(self, machine: Any) -> list[str]:
        self._orders.send(machine)
        if not self._orders.poll(START_SECONDS):
            raise TimeoutError(f"the engines did not start within {START_SECONDS} s")
        urls: list[str] = self._orders.recv()
        return urls

    async def policies(self) -> tuple[dict[str, list[dict[str, float]]], list[dict[str, Any]]]:
        """The figures of each round, by policy; and what the simulator, fitted to ours, says of the first round's."""
        results: dict[str, list[dict[str, float]]] = defaultdict(list)
        fitted: Fit | None = None
        for number in range(self._args.rounds):
            for policy in self._args.policies:
                scale = Scale(self._args.speed, self._args.seed + number)
                steps, skipped = self._args.steps, self._args.skipped
                if policy.name in SLOW:
                    steps, skipped = max(steps // 2, 2), max(skipped // 2, 1)
                played, folder = await self._play(policy, scale, steps, skipped)
                results[policy.name].append(figures.figures_of(played, self._bounds(scale, policy)))
                share = results[policy.name][-1]["of_bound"]
                print(
                    f"{policy.name}: {played.steps} steps in {played.seconds:.0f} s, {share:.3f} of the bound",
                    flush=True,
                )
                if policy is OURS and fitted is None:
                    fitted = fit_run(folder, Config.load(folder / "config.yaml"))
        return dict(results), self._checks(fitted, results) if fitted else []

    def _checks(self, fitted: Fit, results: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
        """Every policy that the simulator can express, predicted from the log of ours alone."""
        scale, checks = Scale(self._args.speed, self._args.seed), []
        for policy in self._args.policies:
            if policy.takes_first or policy.drops_beyond is not None:
                continue
            machine = fitted.machine.model_copy(update={"pause_mode": policy.pause_mode})
            plan = self._plan(policy, scale)
            said = [
                simulate(plan, fitted.workload, machine, steps=40, skipped=10, seed=seed).tokens_per_second
                for seed in range(1 if self._args.quick else 3)
            ]
            measured = results[policy.name][0]["tokens_per_second"]
            checks.append({"plan": policy.name, "predicted": sum(said) / len(said), "measured": measured,
                           "machine": machine.model_dump()})  # fmt: skip
        return checks

    async def _play(self, policy: Policy, scale: Scale, steps: int, skipped: int) -> tuple[Played, Path]:
        return await self._pipelines.play(
            policy, self._plan(policy, scale), scale.world, scale.machine(policy.pause_mode), seed=scale.seed,
            steps=steps, skipped=skipped,
        )  # fmt: skip

    def _plan(self, policy: Policy, scale: Scale) -> Plan:
        return Plan(
            GROUPS_PER_STEP, GROUP_SIZE, policy.run_ahead, policy.max_staleness, policy.max_lag, scale.concurrency
        )

    def _bounds(self, scale: Scale, policy: Policy) -> Bounds:
        machine, workload = scale.machine(policy.pause_mode), scale.world.workload(scale.seed, GROUP_SIZE)
        return Bounds(machine.bound(workload, GROUPS_PER_STEP * GROUP_SIZE), machine.engine_tokens_per_second(workload))


def measure(args: argparse.Namespace) -> tuple[dict[str, list[dict[str, float]]], list[dict[str, Any]]]:
    """Starts what is needed, and measures."""
    here, there = multiprocessing.Pipe()
    engines = multiprocessing.get_context("spawn").Process(target=engine.run, args=(there,), daemon=True)
    engines.start()
    try:
        with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder) / "valkey") as valkey:
            benchmark = Benchmark(args, Path(folder), valkey.url, here)
            return asyncio.run(benchmark.policies())
    finally:
        engines.terminate()
        engines.join(10)


def _arguments() -> argparse.Namespace:
    names = [policy.name for policy in POLICIES]
    parser = command_line.parser(__doc__, quick="few steps at a speed at which nothing can be judged")
    parser.add_argument("--policies", nargs="*", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, help="counted steps of a run")
    parser.add_argument("--skipped", type=int, help="steps before them")
    parser.add_argument("--speed", type=float, help="how many times faster than the real thing")
    args = command_line.settled(
        parser.parse_args(),
        usual={"steps": 30, "skipped": 10, "speed": 110.0},
        quick={"steps": 3, "skipped": 1, "speed": 400.0},
    )
    args.policies = [policy for policy in POLICIES if policy.name in args.policies]
    return args


def main() -> None:
    """Reads the command line, measures, prints."""
    args = _arguments()
    results, checks = measure(args)
    console = Console(width=150)
    held = []
    console.print(figures.table(results))
    held += figures.claims(results, args.policies)
    if checks:
        console.print(figures.simulator_table(checks))
        held += figures.simulator_claims(checks)
    if not args.quick:
        console.print(bars.table(held))
    command_line.write(args.json, {"policies": results, "simulator": checks, "bars": bars.as_json(held)})


if __name__ == "__main__":
    main()
