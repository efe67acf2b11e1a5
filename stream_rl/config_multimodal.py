"""The images' section of the settings. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stream_rl.config_sections import Settings

__all__ = ["MultimodalConfig"]


class MultimodalConfig(Settings):
    """Images, for models that see; without meaning for others."""

    max_pixels: int = Field(2**24, gt=0)
    """Pixels of the largest image that is read; a larger one is refused before it takes memory."""
    url_hosts: list[str] = Field(default_factory=list)
    """Hosts from which images given as http(s) URLs may be fetched. Empty: none."""
    fetch_timeout: float = Field(10.0, gt=0)
    """Seconds that fetching one image may take."""
    producer_cache_mib: int = Field(256, ge=0)
    """Compressed images that a producer remembers, so that equal ones are read and compressed once."""
    engine_cache_mib: int = Field(256, ge=0)
    """Images that an engine keeps as its model takes them: those of earlier turns are not processed again."""
    trainer_cache_mib: int = Field(1024, ge=0)
    """Pixel values that a trainer rank keeps in memory, for images that several samples or steps show."""
    store: Literal["recompute", "disk"] = "recompute"
    """Where else pixel values come from: made of the images again, or kept in the run folder's `pixels/`."""
    store_mib: int = Field(32768, gt=0)
    """With `store: disk`, what `pixels/` may hold; files that were used longest ago go first."""
