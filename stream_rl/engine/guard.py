"""Runs one command and ends its whole process group with the first of: the command, or this script's parent.

    python guard.py SECONDS COMMAND...

The parent holds the other end of standard input, which closes when the parent dies, however it dies. (The kernel's own
signal on a parent's death counts the thread that started the process, and threads come and go.) Then the group gets
SIGTERM, SECONDS later SIGKILL. When the command ends, what it left in the group is killed. Standard library only: this
runs beside every server.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys

__all__ = ["guard"]

PR_SET_PDEATHSIG = 1


def guard(seconds: float, command: list[str]) -> None:
    """Returns never: the process group, this process with it, is killed at the end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_follow_this_process)  # noqa: PLW1509 - one thread
    ended = os.pidfd_open(child.pid)
    ready, _, _ = select.select([sys.stdin.fileno(), ended], [], [])
    if ended not in ready:
        os.killpg(0, signal.SIGTERM)
        select.select([ended], [], [], seconds)
    os.killpg(0, signal.SIGKILL)


def _follow_this_process() -> None:
    # This process has one thread, so here the kernel's signal does mean the process.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    guard(float(sys.argv[1]), sys.argv[2:])
