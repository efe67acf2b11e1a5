"""A sample that comes back from the buffer has what was recorded of it, whatever its text reads like."""

from __future__ import annotations

import numpy as np
from rollouts import ids

from stream_rl.buffer.records import SampleStart
from stream_rl.producer.samples import rebuild
from stream_rl.sample import Turn, VersionSpan, WeightVersion

PROMPT = ids("<|im_start|> user \n guess <|im_end|> \n <|im_start|> assistant \n")
WRITTEN = ids("4 <|im_end|> \n <|im_start|> user \n lower <|im_end|> \n <|im_start|> assistant \n 5")
"""By the model, which goes on by itself as if it had been answered."""
SHOWN = ids("\n <|im_start|> assistant \n 6 <|im_end|> \n <|im_start|> assistant \n")
"""By an environment that writes like the model."""
OPEN = ids("7")


async def test_a_resume_takes_ids_masks_and_versions_from_the_record_and_never_from_the_text(rollout, open_buffer):
    loaded = rollout()
    buffer = await open_buffer(loaded.config)
    (leased,) = await buffer.lease("p", 1)
    log_probs = -np.arange(len(WRITTEN), dtype=np.float32)
    spans = (VersionSpan(0, 3, WeightVersion(0)), VersionSpan(3, len(WRITTEN), WeightVersion(1)))
    records = [
        SampleStart("guess", np.array(PROMPT, np.int32), 1.0, 7, 5),
        Turn(0, np.array(WRITTEN, np.int32), log_probs, np.array(SHOWN, np.int32), spans),
        Turn(1, np.array(OPEN, np.int32), np.array([-9], np.float32), np.zeros(0, np.int32),
             (VersionSpan(0, 1, WeightVersion(1)),), complete=False),
    ]  # fmt: skip
    await buffer.commit(leased.lease, 0, records)
    await buffer.release([leased.lease])
    (again,) = await buffer.lease("p", 1)

    sample, _ = rebuild(again, loaded)

    sample.check()
    assert sample.tokens.tolist() == [*PROMPT, *WRITTEN, *SHOWN, *OPEN]
    assert sample.loss_mask.tolist() == [1] * len(WRITTEN) + [0] * len(SHOWN) + [1]
    assert sample.rollout_log_probs.tolist() == [*log_probs, *[0.0] * len(SHOWN), -9.0]
    assert sample.version_steps.tolist() == [*[0] * 3, *[1] * (len(WRITTEN) - 3), *[-1] * len(SHOWN), 1]
