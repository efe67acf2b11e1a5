"""`stream-rl simulate`: what a run would do under other settings, and which it should have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field
from rich import box
from rich.console import Console
from rich.table import Table

from stream_rl.cli.live import load_run
from stream_rl.cli.numbers import whole_numbers
from stream_rl.cli.tables import print_whole
from stream_rl.config import Config, read_settings
from stream_rl.config_sections import Settings
from stream_rl.errors import ConfigError

if TYPE_CHECKING:
    from stream_rl.tuning import Candidate, Fit, Machine, Plan, Prediction, Workload

__all__ = ["EXAMPLES", "simulate"]

EXAMPLES = """Examples:

  stream-rl simulate runs/demo-0/config.yaml

  stream-rl simulate next.yaml --from runs/demo-0 --max-staleness 0,1,2,4,8

  stream-rl simulate next.yaml --given guess.yaml --concurrency 128,256,512
"""


def simulate(  # noqa: PLR0917 - the command's options
    settings: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The run's settings; see `settings`.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Settings that replace the file's.")
    ] = None,
    logged: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Run whose logs say what is played, and how fast.")
    ] = None,
    given: Annotated[
        Path | None, typer.Option("--given", metavar="FILE.yaml", help="Distributions and speeds, instead of logs.")
    ] = None,
    max_staleness: Annotated[str, typer.Option(help="Bounds to try, with commas.")] = "0,1,2,4,8",
    concurrency: Annotated[str, typer.Option(help="Samples in play to try, all producers together.")] = "",
    steps: Annotated[int, typer.Option(min=10, help="Steps that each simulated run takes.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn.")] = 0,
) -> None:
    """Predict throughput, idle time, lag, waste and length bias by staleness and concurrency, and recommend a setting.

    Without --from and --given, the logs are those of the settings' own run folder. Failures, evaluation and filtering
    are not simulated.
    """
    config = Config.load(settings, overrides or ())
    bounds = whole_numbers("--max-staleness", max_staleness, 0)
    counts = whole_numbers("--concurrency", concurrency, 1) if concurrency else []
    if given is not None and logged is not None:
        raise ConfigError("--from and --given are two sources of the same: pass one")
    from stream_rl.tuning import simulate as play  # noqa: PLC0415 - slow to import, and --help needs none of it

    console = Console(highlight=False)
    fit = None if given is not None else _fitted(logged or config.folder)
    workload, machine = (fit.workload, fit.machine) if fit else _given(given, config, seed)

    @functools.cache
    def predict(plan: Plan) -> Prediction:
        try:
            return play(plan, workload, machine, steps=steps, skipped=steps // 4, seed=seed)
        except ValueError as error:
            raise ConfigError(f"this cannot be simulated: {error}") from error

    _say_speeds(console, machine)
    if fit:
        console.print(f"fitted to {fit.turns} turns and {fit.steps} steps, which trained {fit.measured:,.0f} tokens/s")
    candidates = _candidates(_plan_of(config), bounds, counts, predict)
    print_whole(console, predictions_table(candidates))
    _say_recommended(console, candidates, config, machine.bound(workload, _samples(config)))


def _fitted(folder: Path) -> Fit:
    from stream_rl.tuning import fit_run  # noqa: PLC0415 - as above

    return fit_run(folder, load_run(folder))


def _plan_of(config: Config) -> Plan:
    from stream_rl.tuning import Plan  # noqa: PLC0415 - as above

    knobs = config.scheduling
    return Plan(
        config.rollout.groups_per_step, config.rollout.group_size, knobs.run_ahead, knobs.max_staleness, knobs.max_lag,
        config.producer.count * config.producer.concurrency,
    )  # fmt: skip


def _candidates(
    base: Plan, bounds: list[int], counts: list[int], predict: Callable[[Plan], Prediction]
) -> list[Candidate]:
    """The settings' own plan, and those to try: every bound with every concurrency, or the best bound's neighbours."""
    from stream_rl.tuning import Candidate, explore, grid  # noqa: PLC0415 - as above

    own = [Candidate(base, predict(base))]
    if counts:
        return own + [Candidate(plan, predict(plan)) for plan in grid(base, bounds, counts)]
    return own + explore(base, bounds, predict)


def _samples(config: Config) -> int:
    return config.rollout.groups_per_step * config.rollout.group_size


class Given(Settings):
    """What a file for --given holds."""

    workload: dict[str, Any] = Field(default_factory=dict)
    """Turns, tokens and environment seconds: stream_rl.tuning.GivenWorkload."""
    machine: dict[str, Any] = Field(default_factory=dict)
    """Speeds: stream_rl.tuning.Machine; engines, slots and pause mode are the settings'."""


def _given(path: Path | None, config: Config, seed: int) -> tuple[Workload, Machine]:
    from stream_rl.tuning import GivenWorkload, Machine  # noqa: PLC0415 - as above

    assert path is not None
    parts = Given.within(str(path), read_settings(path))
    limits = {
        "turns_most": config.rollout.max_turns, "tokens_most": config.rollout.max_turn_len,
        "env_most": config.environment.step_timeout, "context_most": config.rollout.max_context_len,
    }  # fmt: skip
    engines = {
        "engines": config.engine.servers, "slots": config.engine.max_running_requests,
        "pause_mode": config.engine.pause_mode,
    }  # fmt: skip
    workload = GivenWorkload.within(f"{path}: workload", {**limits, **parts.workload})
    machine = Machine.within(f"{path}: machine", {**engines, **parts.machine})
    return workload.workload(seed, config.rollout.group_size), machine


def _say_speeds(console: Console, machine: Machine) -> None:
    full = machine.token_seconds + machine.slots * machine.crowd_seconds
    console.print(
        f"engines: {machine.engines} with {machine.slots} slots, a token every {machine.token_seconds * 1000:.2f} ms "
        f"alone and {full * 1000:.2f} ms when full; a weight update takes {machine.update_seconds:.2f} s\n"
        f"trainer: {machine.step_seconds:.2f} s a step and {machine.train_seconds * 1e6:.1f} s per million tokens",
        soft_wrap=True,
    )


def predictions_table(candidates: list[Candidate]) -> Table:
    """One row a plan, the settings' own first."""
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    for column in (
        "max_staleness", "run_ahead", "max_lag", "concurrency", "tokens/s", "of bound", "lag mean", "p99", "max",
        "masked", "length bias", "engines idle", "trainer idle", "s/step",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for number, candidate in enumerate(candidates):
        plan, one = candidate.plan, candidate.prediction
        table.add_row(
            str(plan.max_staleness), f"{plan.run_ahead:g}", str(plan.max_lag), str(plan.concurrency),
            f"{one.tokens_per_second:,.0f}", f"{one.of_bound:.1%}", f"{one.lag_mean:.1f}", f"{one.lag_p99:.0f}",
            str(one.lag_max), f"{one.masked:.1%}", f"{one.length_bias:.3f}", f"{one.engine_idle:.0%}",
            f"{one.trainer_idle:.0%}", f"{one.step_seconds:.2f}", style="bold" if number == 0 else "",
        )  # fmt: skip
    return table


def _say_recommended(console: Console, candidates: list[Candidate], config: Config, bound: float) -> None:
    from stream_rl.tuning import recommend  # noqa: PLC0415 - as above

    plan = recommend(candidates).plan
    concurrency = -(-plan.concurrency // config.producer.count)
    settings = (
        f"run_ahead={plan.run_ahead:g} max_staleness={plan.max_staleness} max_lag={plan.max_lag} "
        f"concurrency={concurrency}"
    )
    console.print(
        f"recommended: {settings}\n"
        f"  the least stale within 2% of the fastest; nothing could train more than {bound:,.0f} tokens/s here\n"
        f"  in a live run: stream-rl set {config.run} {settings}",
        soft_wrap=True,
    )
