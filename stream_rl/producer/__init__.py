"""Producers: resumable turn loops between the buffer, the environments and the engines."""
