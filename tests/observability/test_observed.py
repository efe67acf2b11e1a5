"""What a real Prometheus knows of a real run: every panel, every alert, and the truth of the counters."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from observed_run import DEPLOY, KILLS, Observed

from stream_rl.metrics.catalog import METRICS, PREFIX
from stream_rl.metrics.run_folder import ended_samples, read_summary, surviving_steps

pytestmark = pytest.mark.timeout(900)

FILES = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in FILES}
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules" / "stream_rl.yaml").read_text())["groups"][0]["rules"]
PANELS = {(name, panel["title"]): panel for name, drawn in DASHBOARDS.items() for panel in drawn["panels"]}

MAY_BE_EMPTY = {
    "Tool calls": "the world of the run has no tools",
    "Judge": "no judge is asked",
    "Control tokens in texts": "numbers spell no control token",
    "Environment failures": "the world of the run does not fail",
    "Commits refused": "only where a producer was silent and came back",
    "Waiting for room": "the buffer has room",
    "Engine requests retried": "only where an engine died under a request",
    "Version stamps": "engines answer with what they confirmed",
    "Masked tokens by response length": "episodes are too short to grow too old",
    "Resumes": "only where a killed producer held samples that had begun",
    "Repetition": "an episode of at most eight tokens has no phrase to repeat",
}
MAY_BE_ABSENT = {
    "tool_calls_total", "judge_questions_total", "control_tokens_read_as_text_total", "env_retries_total",
    "commits_refused_total", "room_wait_seconds_total", "engine_request_retries_total", "version_mismatches_total",
    "older_cache_tokens_total", "masked_tokens_total", "repetition_ratio", "resumes_total", "resume_tokens_saved_total",
}  # fmt: skip
"""Metrics without a value until that happens; the panels that draw them may be empty, for the reasons above."""


@pytest.mark.parametrize("place", PANELS, ids="/".join)
def test_every_query_of_a_panel_evaluates_and_the_panel_has_data(observed: Observed, place: tuple[str, str]) -> None:
    found = [observed.series(target["expr"]) for target in PANELS[place]["targets"]]
    assert any(found) or place[1] in MAY_BE_EMPTY


@pytest.mark.parametrize("annotation", ["Weight versions", "Live changes"])
def test_annotations_evaluate(observed: Observed, annotation: str) -> None:
    (expr,) = [one["expr"] for one in DASHBOARDS["overview"]["annotations"]["list"] if one["name"] == annotation]
    found = observed.series(expr)
    assert found or annotation == "Live changes"


def test_variables_have_values(observed: Observed) -> None:
    values = {}
    for variable in DASHBOARDS["turns"]["templating"]["list"]:
        if variable["type"] == "query":
            series, label = observed.filled(variable["query"])[len("label_values(") : -1].rsplit(", ", 1)
            parameters = {"match[]": series, "start": observed.began, "end": observed.ended}
            values[variable["name"]] = observed.ask(f"label/{label}/values?{urlencode(parameters)}")
    assert values == {"run": ["observed"], "environment": ["guess_number"]}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_evaluates(observed: Observed, rule: dict[str, Any]) -> None:
    loaded = {one["name"]: one for group in observed.ask("rules")["groups"] for one in group["rules"]}
    assert (loaded[rule["alert"]]["health"], loaded[rule["alert"]].get("lastError")) == ("ok", None)


def test_what_is_exposed_is_the_catalog(observed: Observed) -> None:
    exposed = {name for name in observed.ask("label/__name__/values") if name.startswith(PREFIX)}
    catalog = {series: metric.name for metric in METRICS for series in metric.series}
    assert exposed <= catalog.keys()
    assert {name for series, name in catalog.items() if series not in exposed} <= MAY_BE_ABSENT


def test_engines_are_discovered_with_their_own_metrics(observed: Observed) -> None:
    expr = 'max by (instance) (last_over_time(up{kind="engine"}[1h]))'
    (engine,) = observed.ask("query", query=expr, time=observed.ended)["result"]
    assert engine["metric"] == {"instance": "engine-0"}
    assert observed.series('{__name__=~"sglang[:_]num_running_reqs", kind="engine"}')


def test_every_kind_of_process_is_discovered_under_its_own_name(observed: Observed) -> None:
    expr = "count by (kind, instance) (last_over_time(up[1h]))"
    kept = observed.ask("query", query=expr, time=observed.ended)["result"]
    names = {(one["metric"]["kind"], one["metric"]["instance"]) for one in kept}
    assert names == {
        ("supervisor", "supervisor"), ("producer", "producer-0"), ("producer", "producer-1"), ("trainer", "trainer-0"),
        ("engine", "engine-0"),
    }  # fmt: skip


def test_counters_say_what_the_buffer_recorded(observed: Observed) -> None:
    folder, summary = observed.folder, read_summary(observed.folder)
    ended = [sample for sample in ended_samples(folder) if sample["kind"] != "restarted"]
    finished = [sample for sample in ended if sample["kind"] == "finished"]
    assert observed.total("stream_rl_turns_committed_total") == summary["committed_turns"]
    for (status, reason), count in Counter((one["status"], one["stop_reason"]) for one in ended).items():
        assert observed.total("stream_rl_samples_ended_total", status=status, reason=reason) == count
    assert observed.total("stream_rl_samples_ended_total") == len(ended)
    assert observed.total("stream_rl_generated_tokens_total") == sum(one["generated"] for one in ended)
    assert observed.total("stream_rl_sample_reward_count") == len(finished)
    assert observed.reward == pytest.approx(math.fsum(one["reward"] for one in finished))
    assert observed.total("stream_rl_turns_per_sample_sum") == sum(one["turns"] for one in finished)
    assert observed.total("stream_rl_response_length_tokens_sum") == sum(one["response_length"] for one in finished)


def test_step_counters_say_what_the_ledger_trained(observed: Observed) -> None:
    steps = surviving_steps(observed.folder / "steps.jsonl")
    assert observed.total("stream_rl_trainer_steps_total") == len(steps)
    assert observed.total("stream_rl_trained_tokens_total") == sum(step["trained_tokens"] for step in steps)
    assert observed.total("stream_rl_group_lag_versions_count") == sum(len(step["groups"]) for step in steps)


def test_every_death_was_counted_once_and_lost_nothing(observed: Observed) -> None:
    summary = read_summary(observed.folder)
    assert sum(summary["recoveries"].values()) >= KILLS
    assert (summary["lost_turns"], summary["trained_twice"]) == (0, 0)
    for kind, times in summary["recoveries"].items():
        assert observed.total("stream_rl_recoveries_total", process=kind) == times
