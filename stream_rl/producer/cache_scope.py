"""Who may share cached prefixes where weights change under the cache (`engine.pause_mode: in_place`).

There an update leaves keys and values of the older weights in the cache, and in the requests under way. SGLang shares
prefixes only under one `extra_key`: with a key for each group, they can serve the group that they were computed for and
no other. What is written from them is counted, for its log-probs are not the trainer's.
"""

from __future__ import annotations

from dataclasses import dataclass

from stream_rl.config import Config
from stream_rl.engine.generation import Generation

__all__ = ["CacheScope", "cache_scope"]


@dataclass(frozen=True, slots=True)
class CacheScope:
    """`key` is the requests' `extra_key`; `oldest` the step that every serving engine had confirmed when it began."""

    key: str
    oldest: int

    def older(self, generation: Generation) -> int:
        """Tokens that may have been computed from keys and values of other weights than those that wrote them.

        That is certain after a change inside the request, and possible where the scope's cached prefix was used by a
        newer version than the scope's oldest.
        """
        return sum(
            span.end - span.start
            for number, span in enumerate(generation.spans)
            if number or (generation.cached_tokens and span.version.step > self.oldest)
        )


def cache_scope(config: Config, name: str, oldest: int) -> CacheScope | None:
    """The scope of a group, or None where updates flush the cache and every prefix may be shared."""
    if config.engine.pause_mode != "in_place":
        return None
    return CacheScope(f"{config.name}/{name}/{oldest}", oldest)
