"""Service discovery as Prometheus asks for it."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stream_rl.metrics.discovery import discovery_server, target


@contextmanager
def serving(look: Callable[[], Iterable[Any]]) -> Iterator[str]:
    with discovery_server("127.0.0.1", 0, look) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join(10)


def test_a_process_keeps_its_name_wherever_it_listens() -> None:
    found = target("demo", "producer", "producer-0", "http://10.0.0.3:41023/metrics")
    assert found == {
        "targets": ["10.0.0.3:41023"],
        "labels": {"run": "demo", "kind": "producer", "instance": "producer-0"},
    }


def test_an_engine_behind_a_path_is_scraped_below_it() -> None:
    labels = target("demo", "engine", "engine-0", "https://engines/a/")["labels"]
    assert (labels["__metrics_path__"], labels["__scheme__"]) == ("/a/metrics", "https")


def test_each_question_looks_again() -> None:
    looks = iter([[target("r", "engine", "engine-0", "http://e:1")], []])
    with serving(lambda: next(looks)) as url:
        answers = []
        for _ in range(2):
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert answer.headers["Content-Type"] == "application/json"
                answers.append(json.load(answer))
    assert [len(answer) for answer in answers] == [1, 0]


def test_a_look_that_fails_is_no_answer_and_the_next_is_one() -> None:
    def look() -> Iterable[Any]:
        if not failed:
            failed.append(True)
            raise OSError("Redis is away")
        return []

    failed: list[bool] = []
    with serving(look) as url:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, timeout=10)
        refused.value.close()
        assert refused.value.code == 503
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert json.load(answer) == []
