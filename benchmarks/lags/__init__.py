"""What lag does to learning: episodes, runs whose lag is held, and what their curves say."""
