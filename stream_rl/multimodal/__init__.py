"""Images: read once from whatever form they come in, kept compressed, and made into what a model sees."""

from stream_rl.multimodal.picture import Encoded, Picture

__all__ = ["Encoded", "Picture"]
