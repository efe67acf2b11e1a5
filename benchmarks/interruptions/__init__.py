"""What interrupting generations costs: the load, the engine with its checkpoints, rounds, and what they say."""
