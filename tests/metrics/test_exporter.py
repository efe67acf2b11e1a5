"""The /metrics server of a process."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from stream_rl.errors import ConfigError
from stream_rl.metrics import catalog
from stream_rl.metrics.exporter import serve_metrics


def test_the_url_answers_with_the_catalog() -> None:
    catalog.RECOVERIES.inc(process="exporter-test")
    with urllib.request.urlopen(serve_metrics("127.0.0.1"), timeout=10) as answer:
        text = answer.read().decode()
    assert 'stream_rl_recoveries_total{process="exporter-test"} 1.0' in text


def test_two_servers_take_two_ports() -> None:
    assert serve_metrics("127.0.0.1") != serve_metrics("127.0.0.1")


def test_a_taken_port_names_its_setting(taken_port: int) -> None:
    with pytest.raises(ConfigError, match=f"metrics.port={taken_port} is taken on 127.0.0.1: choose another"):
        serve_metrics("127.0.0.1", taken_port)


def test_a_foreign_host_names_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on metrics\.host='192\.0\.2\.1'"):
        serve_metrics("192.0.2.1")


def test_a_server_on_every_address_is_reached_by_the_machines_name() -> None:
    url = serve_metrics("0.0.0.0")
    assert url.startswith(f"http://{socket.getfqdn()}:")
    with urllib.request.urlopen(url.replace(socket.getfqdn(), "127.0.0.1"), timeout=10) as answer:
        assert answer.status == 200
