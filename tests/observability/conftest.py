"""One observed run for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from observed_run import Observed, observed_run


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Observed]:
    with observed_run(tmp_path_factory.mktemp("observed"), tiny_model) as seen:
        yield seen
