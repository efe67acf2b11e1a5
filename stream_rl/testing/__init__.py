"""Stand-ins for users' own tests. Importing them needs neither torch nor SGLang."""

from stream_rl.testing.fake_engine import FakeEngineServer, Fault
from stream_rl.testing.fake_request import Latency
from stream_rl.testing.token_sources import TokenSource, scripted, seeded

__all__ = ["FakeEngineServer", "Fault", "Latency", "TokenSource", "scripted", "seeded"]
