"""Buffer and recoveries: where groups and samples are, and which processes had to be brought back."""

from __future__ import annotations

from stream_rl.metrics import catalog
from stream_rl.metrics.dashboards.panel import Dashboard, lines, stacked
from stream_rl.metrics.dashboards.promql import growth, latest, rate

__all__ = ["ACCOUNTING", "BUFFER", "RECOVERIES", "TURNS_COMMITTED"]

RECOVERIES = lines(
    "Recoveries",
    "Processes brought back after a death, in all. No turn is lost by any; many of one kind: read the end of its log "
    "in RUN/logs, the run gives up after supervision.max_deaths_without_progress.",
    (latest(catalog.RECOVERIES, "process"), "{{process}}"),
)
ACCOUNTING = lines(
    "Accounting",
    "Admitted groups less those trained, filtered, dead-lettered and live. Anything but 0 is a bug: keep the run "
    "folder and Redis, and report it.",
    (latest(catalog.ACCOUNTING), "groups"),
    least=None,
)
TURNS_COMMITTED = lines(
    "Turns committed",
    "Complete turns a second that the buffer accepted: the pace of all rollouts. Zero while engines serve: producers "
    "stand still, see Samples by producer and Waiting for room.",
    (rate(catalog.TURNS_COMMITTED, "environment"), "{{environment}}"),
)

BUFFER = Dashboard(
    "buffer",
    "Buffer and recoveries",
    "Where every group and sample is, what keeps them, and which processes had to be brought back.",
    [
        lines(
            "Groups by state",
            "Live groups, and of those the complete ones that wait for a step. Many complete: the trainer is the "
            "slower side; many live, few complete: rollouts are.",
            (latest(catalog.GROUPS, "state", state="live|complete"), "{{state}}"),
        ),
        stacked(
            "Samples by state",
            "Pending ones were never begun, leased ones are being played, resumable ones came back and wait. Resumable "
            "for long: no producer has room, or none is alive.",
            (latest(catalog.SAMPLES, "state"), "{{state}}"),
        ),
        lines(
            "Oldest lease and partial",
            "Seconds that a producer has held its oldest sample, and that the oldest interrupted one has waited. A "
            "lease that grows without end: a hanging environment, see rollout.deadline and environment.step_timeout.",
            (latest(catalog.OLDEST_LEASE_SECONDS, "instance"), "held by {{instance}}"),
            (latest(catalog.OLDEST_PARTIAL_SECONDS), "waits for a producer"),
            unit="s",
        ),
        lines(
            "Samples by producer",
            "What each producer plays, and how many producers the buffer counts on. One at 0 while others are full: "
            "its machine or its engines are out of reach.",
            (latest(catalog.LIVE_SAMPLES, "instance"), "{{instance}}"),
            (latest(catalog.PRODUCERS), "producers"),
        ),
        TURNS_COMMITTED,
        lines(
            "Waiting for room",
            "Share of the time that producers got less work than they asked for, by the limit. buffer.max_journal_mib "
            "or maxmemory: give Redis more, or compress; max_leased_samples: it is doing what it is for.",
            (rate(catalog.ROOM_WAIT_SECONDS, "limit"), "{{limit}}"),
            unit="percentunit",
        ),
        lines(
            "Groups left out",
            "Groups in the window that were filtered or dead-lettered, by reason, and failed samples replaced. A "
            "growing dead_lettered: the world or the engines fail, `stream-rl dead-letters list` says how.",
            (growth(catalog.GROUPS_LEFT_OUT, "state", "reason"), "{{state}} {{reason}}"),
            (growth(catalog.REFILLS), "samples refilled"),
        ),
        lines(
            "Redis memory",
            "What Redis uses, what it may use, and what of it is journals. Above nine tenths: groups are kept back, "
            "then writes wait; give it more, checkpoint more often, or set buffer.compression.",
            (latest(catalog.REDIS_MEMORY_BYTES, "kind"), "{{kind}}"),
            (latest(catalog.JOURNAL_BYTES), "journals"),
            unit="bytes",
        ),
        RECOVERIES,
        ACCOUNTING,
        lines(
            "Processes up",
            "Whether Prometheus reaches each process. One that stays at 0: it is being brought back, or its port is "
            "closed to Prometheus's machine (metrics.host).",
            ('max by (instance) (up{run=~"$run"})', "{{instance}}"),
        ),
        lines(
            "CPU of processes",
            "CPU seconds a second of each process. A producer near 1 is at its limit: start more of them "
            "(producer.count).",
            ('sum by (instance) (rate(process_cpu_seconds_total{run=~"$run"}[$window]))', "{{instance}}"),
        ),
        lines(
            "Memory of processes",
            "Memory that each process holds. One that grows without end: look at what its environment keeps; near what "
            "the machine has: it will be killed without a word, run fewer there (producer.count).",
            ('sum by (instance) (process_resident_memory_bytes{run=~"$run"})', "{{instance}}"),
            unit="bytes",
        ),
    ],
)  # fmt: skip
