"""`python -m stream_rl` is `stream-rl`."""

from stream_rl.cli import main

main()
