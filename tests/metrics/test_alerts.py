"""Alerts name series of the catalog, lead to a runbook page, and are tested."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_rl.metrics.catalog import METRICS

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules" / "stream_rl.yaml").read_text())["groups"][0]["rules"]
PAGES = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)
CASES = yaml.safe_load((ROOT / "tests" / "observability" / "rules_test.yaml").read_text())["tests"]
SERIES = frozenset().union(*(metric.series for metric in METRICS))
rules = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


@rules
def test_a_rule_asks_for_what_there_is(rule: dict[str, Any]) -> None:
    assert set(re.findall(r"stream_rl_[a-z0-9_]+", rule["expr"])) <= SERIES


@rules
def test_a_rule_leads_to_its_page(rule: dict[str, Any]) -> None:
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
    assert rule["labels"]["severity"] in ("warning", "critical")


def test_every_rule_has_a_page_and_no_page_is_without_one() -> None:
    assert [rule["alert"] for rule in RULES] == PAGES


def test_every_rule_is_tested_to_fire_and_to_be_silent() -> None:
    healthy, wrong = CASES
    for case, fires in ((healthy, False), (wrong, True)):
        tested = {one["alertname"]: bool(one.get("exp_alerts")) for one in case["alert_rule_test"]}
        assert tested == {rule["alert"]: fires for rule in RULES}
