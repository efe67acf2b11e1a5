"""What a step needs beside weights and optimizer, by a formula, for what was measured to stand beside.

docs/trainer.md explains the terms.
"""

from __future__ import annotations

from learners.work import Shape

BYTES = {"float32": 4, "bfloat16": 2}


def predicted(shape: Shape, tokens: int, trained: int, *, dtype: str, recompute: bool, chunk: int) -> int:
    """Bytes at the peak of a step of one packed micro-batch on one rank: gradients, activations, head.

    Args:
        shape: the model's.
        tokens, trained: of the micro-batch; those that carry loss.
        dtype: what is computed in.
        recompute: whether blocks keep only what goes into them.
        chunk: numbers in a chunk of logits.
    """
    width = BYTES[dtype]
    queries, keys = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    block = 6 * shape.hidden + 4 * queries + 4 * keys + 4 * shape.feed_forward
    # A block's backward pass holds the gradients of its widest part beside what the forward pass kept.
    backward = 2 * shape.feed_forward + 2 * shape.hidden
    kept = shape.layers * shape.hidden + block if recompute else shape.layers * block
    activations = width * tokens * (kept + backward + 2 * shape.hidden)
    head = 2 * width * trained * shape.hidden + 2 * 4 * chunk
    gradients = 4 * (shape.block_weights + 2 * shape.hidden * shape.vocabulary)
    return gradients + activations + head
