"""What is asked of the machine, and is not there."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

import pytest
import torch

from stream_rl.config import Config
from stream_rl.errors import ConfigError
from stream_rl.preflight.machine import check_machine, check_ports

Make = Callable[..., Config]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`gpus(2)`: a machine with so many, and 2 CPUs."""

    def set_to(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(os, "cpu_count", lambda: 2)

    return set_to


@pytest.mark.parametrize(
    ("count", "sections", "message"),
    [
        (0, {"trainer": {"device": "cuda"}}, "trainer.device=cuda, but this machine has no CUDA device"),
        (0, {"engine": {"device": "cuda"}}, "engine.device=cuda, but this machine has no CUDA device"),
        (2, {"trainer": {"world_size": 3}}, "trainer.world_size=3 is more than the 2 GPUs"),
        (0, {"trainer": {"world_size": 9}}, "trainer.world_size=9 is too much for the 2 CPUs"),
        (0, {"trainer": {"threads": 1000}}, "trainer.threads=1000 is too much for the 2 CPUs"),
        (0, {"engine": {"count": 1000}}, "engine.count=1000 is too much for the 2 CPUs"),
        (0, {"producer": {"count": 1000}}, "producer.count=1000 is too much for the 2 CPUs"),
    ],
)
def test_more_than_the_machine_has(
    config: Make, gpus: Callable[[int], None], count: int, sections: dict[str, object], message: str
) -> None:
    gpus(count)
    with pytest.raises(ConfigError, match=message):
        check_machine(config(**sections))
    check_machine(config(**sections, supervision={"ray_address": "auto"}))


@pytest.mark.parametrize("sections", [{}, {"trainer": {"world_size": 2}}, {"trainer": {"device": "cpu"}}])
@pytest.mark.parametrize("count", [0, 2])
def test_what_the_machine_has(
    config: Make, gpus: Callable[[int], None], count: int, sections: dict[str, object]
) -> None:
    gpus(count)
    check_machine(config(**sections))


def test_engines_need_sglang_unless_they_run_already(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"engine.urls is empty, and SGLang is not installed .*pip install"):
        check_machine(config())
    check_machine(config(engine={"urls": ["http://127.0.0.1:1"], "device": "cuda", "count": 1000}))


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid", "a" * 70])
def test_an_address_that_is_not_this_machines(config: Make, host: str) -> None:
    with pytest.raises(ConfigError, match=rf"metrics.host={host} cannot be used on"):
        check_ports(config(metrics={"host": host}))


def test_a_port_is_given_to_one_process_only(config: Make, taken_port: int) -> None:
    sections = {"engine": {"port": taken_port, "urls": ["http://127.0.0.1:1"]}}
    check_ports(config(**sections))  # no engine is started
    free = {"metrics": {"port": 41001}, "engine": {"port": 41000, "count": 2}}
    with pytest.raises(ConfigError, match=r"engine.port=41000 leaves metrics.port=41001 to an engine"):
        check_ports(config(**free))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379", "nowhere", "ray://127.0.0.1:1", "a:b"])
def test_a_ray_cluster_that_is_not_there(config: Make, address: str) -> None:
    with pytest.raises(ConfigError, match=r"supervision.ray_address='.*' cannot be reached"):
        check_machine(config(supervision={"ray_address": address}))


def test_a_ray_cluster_that_answers(config: Make, taken_port: int) -> None:
    check_machine(config(supervision={"ray_address": f"127.0.0.1:{taken_port}"}))
