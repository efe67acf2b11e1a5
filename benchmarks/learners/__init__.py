"""What takes a training step in the trainer's benchmark: ours, packed and padded, and TRL's."""
