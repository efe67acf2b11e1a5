"""A finished run's folder, shared by the tests of what reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders import write_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; no test writes into it."""
    return write_run(tmp_path_factory.mktemp("runs") / "demo")
