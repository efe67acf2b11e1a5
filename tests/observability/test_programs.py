"""Prometheus's own tools: the rules' cases, the configuration, and the flags that compose.yaml gives it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml
from observed_run import DEPLOY


def run(*command: str) -> str:
    """What a program prints; its exit code must be 0."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_alert_fires_when_it_should_and_a_healthy_run_raises_none() -> None:
    assert "SUCCESS" in run("promtool", "test", "rules", str(Path(__file__).with_name("rules_test.yaml")))


def test_the_configuration_and_its_rules_are_valid() -> None:
    assert "SUCCESS" in run("promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


def test_prometheus_knows_its_flags() -> None:
    known = run("prometheus", "--help")
    for flag in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["prometheus"]["command"]:
        assert flag.partition("=")[0] in known
