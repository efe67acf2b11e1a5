"""`python -m stream_rl.metrics.dashboards FOLDER` writes every dashboard's JSON into the folder."""

from __future__ import annotations

import sys
from pathlib import Path

from stream_rl.metrics.dashboards.grafana import files


def main() -> None:
    """Writes the files, and nothing else."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
