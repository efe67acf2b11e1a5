"""Settings that may be changed while a run is live, the audit list of all changes, and what a resume makes of them.

    set_live ──► rules of the run (Redis) ──► admission, pull, limits: at their next decision
                     │                    └─► concurrency: with each producer's next heartbeat
                     └──► audit list ──► status, report, RUN/changes.jsonl

Invariants: a change is checked as a settings file is, against the values in force, and lands as a whole with its entry
in the audit list or not at all; a step's mask follows from the values that the ledger recorded when it was taken, so a
replay repeats it. A resume keeps what was set, unless the settings ask for another value than when the run was last
opened: then they are the newer wish, win, and are entered in the list as well. run_ahead, max_staleness and max_lag are
kept or replaced together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import orjson

from stream_rl.buffer.connection import Connection, nonce
from stream_rl.buffer.records import MEBI, UNLIMITED, RunRules
from stream_rl.config import BufferConfig, ProducerConfig, SchedulingConfig
from stream_rl.config_sections import Settings
from stream_rl.errors import BufferUnavailable, ConfigError
from stream_rl.suggestion import did_you_mean

__all__ = ["LIVE_SETTINGS", "LiveSettingCalls", "SettingChange"]

ATTEMPTS = 5
"""Changes by others that one call outlasts."""

SECTIONS: Mapping[str, type[Settings]] = {
    "scheduling": SchedulingConfig, "producer": ProducerConfig, "buffer": BufferConfig,
}  # fmt: skip
_RULES = {
    "scheduling.run_ahead": "run_ahead",
    "scheduling.max_staleness": "max_staleness",
    "scheduling.max_lag": "max_lag",
    "scheduling.max_untrainable_completions": "max_untrainable_completions",
    "producer.concurrency": "concurrency",
    "producer.max_refills_per_group": "max_refills_per_group",
    "buffer.max_journal_mib": "max_journal_bytes",
    "buffer.max_ready_groups": "max_ready_groups",
    "buffer.max_leased_samples": "max_leased_samples",
}
LIVE_SETTINGS = tuple(_RULES)
"""The settings that may be changed in a live run, by their full names; the last part alone names them too."""
_SETTINGS = {rule: setting for setting, rule in _RULES.items()} | {
    "groups_per_step": "rollout.groups_per_step", "filter_zero_variance": "scheduling.filter_zero_variance",
}  # fmt: skip

Value = float | None


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One entry of the audit list. `number` counts from 1, `time` is the server's, in seconds.

    `by` is `set` for a live change and `resume` for settings that differed when the run was opened again; `step` counts
    the ledger's steps at that moment. A value of None is no limit.
    """

    number: int
    time: float
    setting: str
    old: Value
    new: Value
    by: Literal["set", "resume"]
    step: int


class LiveSettingCalls:
    """Live settings, as TrajectoryBuffer has them. All of these raise BufferUnavailable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def set_live(self, values: Mapping[str, Any]) -> list[SettingChange]:
        """Changes settings of the run, all of them or none; gives the changes, without those that were so already.

        Args:
            values: by full name or by its last part: `{"max_staleness": 4, "producer.concurrency": 256}`.

        Raises:
            ConfigError: no such setting, none that a live run may change, one under both its names, a wrong value, or
                values that contradict each other or those in force; or the run was never opened.
        """
        asked = _by_full_name(values)
        token = nonce()
        for _ in range(ATTEMPTS):
            in_force, count = await self._in_force()
            pairs = [part for rule, value in _checked(asked, in_force) for part in (rule, value)]
            kind, *entries = await self._connection.script("set_live", token, count, *pairs)
            if kind == b"ok":
                return [_change(entry) for entry in entries]
        raise BufferUnavailable(f"the settings were changed by others {ATTEMPTS} times meanwhile: try again")

    async def live_settings(self) -> dict[str, Value]:
        """Every live setting's value in force, by full name; None is no limit. Raises ConfigError without a run."""
        in_force, _ = await self._in_force()
        return {setting: _value(rule, in_force[rule]) for setting, rule in _RULES.items()}

    async def setting_changes(self) -> list[SettingChange]:
        """The audit list, oldest first."""
        key = self._connection.key("changes")
        (found,) = await self._connection.pipeline(lambda pipe: pipe.lrange(key, 0, -1))
        return [_change(entry) for entry in found]

    async def _in_force(self) -> tuple[dict[str, bytes], int]:
        """The rules of the run, and the length of the audit list. Raises ConfigError without a run."""
        run, changes = self._connection.key("run"), self._connection.key("changes")
        rules, count = await self._connection.pipeline(lambda pipe: (pipe.hgetall(run), pipe.llen(changes)))
        if b"group_size" not in rules:
            raise ConfigError(f"there is no run at {self._connection.prefix} in Redis at {self._connection.url}")
        return {name.decode(): value for name, value in rules.items()}, count


def _by_full_name(values: Mapping[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    for name, value in values.items():
        full = _full_name(name)
        if full in asked:
            raise ConfigError(f"{full} is given twice, as {full} and as {full.rpartition('.')[2]}: leave one out")
        asked[full] = value
    return asked


def _full_name(name: str) -> str:
    short = {setting.rpartition(".")[2]: setting for setting in LIVE_SETTINGS}
    if (full := short.get(name, name)) in LIVE_SETTINGS:
        return full
    section, _, last = name.rpartition(".")
    if section in SECTIONS and last in SECTIONS[section].model_fields:
        raise ConfigError(
            f"{name} cannot be changed in a live run: stop the run, and resume it with {name}=VALUE. Live: "
            + ", ".join(short)
        )
    hint = did_you_mean(name, [*short, *LIVE_SETTINGS], f"known are {', '.join(short)}")
    raise ConfigError(f"no live setting {name!r}: {hint}")


def _checked(asked: Mapping[str, Any], in_force: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """The rules that the values asked for make, each checked beside the others of its section as they are in force."""
    batch = int(in_force["groups_per_step"])
    for section, model in SECTIONS.items():
        mine = {name: value for name, value in asked.items() if name.startswith(f"{section}.")}
        if not mine:
            continue
        others = {name: _value(rule, in_force[rule]) for name, rule in _RULES.items() if name.startswith(f"{section}.")}
        if not others.get("producer.concurrency", True):
            del others["producer.concurrency"]  # each producer's own
        tree = {name.rpartition(".")[2]: value for name, value in {**others, **mine}.items()}
        checked = model.within(section, tree)
        for name in mine:
            value = getattr(checked, name.rpartition(".")[2])
            if name == "buffer.max_ready_groups" and value is not None and value < batch:
                raise ConfigError(f"{name}={value} is less than rollout.groups_per_step={batch}: raise it")
            yield _RULES[name], _stored(_RULES[name], value)


def _value(rule: str, text: bytes | float) -> Value:
    number = float(text)
    if number >= UNLIMITED:
        return None
    number /= MEBI if rule == "max_journal_bytes" else 1
    return int(number) if number.is_integer() else number


def _stored(rule: str, value: Value) -> str:
    if value is None:
        return str(UNLIMITED)
    return f"{value * (MEBI if rule == 'max_journal_bytes' else 1):.17g}"


def _change(entry: bytes) -> SettingChange:
    tree = orjson.loads(entry)
    rule = tree.pop("rule")
    old, new = (_value(rule, tree.pop(name)) for name in ("old", "new"))
    return SettingChange(**tree, setting=_SETTINGS[rule], old=old, new=new)


assert set(_SETTINGS) == {field.name for field in fields(RunRules)} - {"group_size", "total_groups"}
