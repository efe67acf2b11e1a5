"""Modules that import from slime work without it: their own lines stay as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stream_rl.slime.types import Sample

ENVIRONMENT = """
from __future__ import annotations
from examples.geo3k_vlm_multi_turn.base_env import BaseInteractionEnv
from slime.utils.types import Sample
import slime.utils.types as types

class Env(BaseInteractionEnv):
    pass

def build_env(sample: Sample | None = None, args=None, **_):
    assert types.Sample is Sample and Sample.Status.COMPLETED.value == "completed"
    return Env()
"""


def run(folder: Path, code: str) -> str:
    """What a Python of its own prints, since imports last as long as a process."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a module of the kind that slime's users have, in a package `examples` of their own."""
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "env_mine.py").write_text(ENVIRONMENT)
    return tmp_path


LOAD = """
from stream_rl.slime.imports import allow_slime_imports
from stream_rl.envs.loading import load_environment
allow_slime_imports()
allow_slime_imports()
env = load_environment("{path}").build_env()
print(type(env).__mro__[1].__module__, env.format_observation({{"obs_str": "hi"}}))
"""


@pytest.mark.parametrize("path", ["examples.env_mine", "examples/env_mine.py"])
def test_an_environment_of_slimes_imports_as_it_is(folder: Path, path: str) -> None:
    said = run(folder, LOAD.format(path=path))
    assert said == "stream_rl.slime.base_env {'role': 'user', 'content': 'hi'}"


GRADING = r"""
from stream_rl.slime.imports import allow_slime_imports
allow_slime_imports()
from PIL import Image
from slime.rollout.rm_hub import grade_answer_verl
from slime.rollout.rm_hub.math_utils import extract_answer as extract_boxed_answer
from slime.utils.processing_utils import build_processor_kwargs, encode_image_for_rollout_engine, process_vision_info
graded = [("so \\boxed{\\frac{1}{2}}", "0.5"), ("\\boxed{3}", "4"), ("12", "12")]
print(*(grade_answer_verl(said, right) for said, right in graded))
print(extract_boxed_answer("first \\boxed{1}, then \\boxed{2\\sqrt{3}}."), extract_boxed_answer("12"))
picture = Image.new("L", (2, 2))
seen = process_vision_info([{"content": [{"type": "image", "image": picture}, {"text": "?"}]}, {"content": "!"}])
print(build_processor_kwargs(seen) == {"images": [picture]}, encode_image_for_rollout_engine(picture)[:11])
"""


def test_what_slimes_geometry_imports_is_there(folder: Path) -> None:
    said = run(folder, GRADING).splitlines()
    assert said == ["True False False", "2\\sqrt{3} None", "True iVBORw0KGgo"]


def test_a_slime_that_is_there_stays(folder: Path) -> None:
    (folder / "slime" / "utils").mkdir(parents=True)
    (folder / "slime" / "utils" / "types.py").write_text("Sample = 'theirs'")
    code = "from stream_rl.slime.imports import allow_slime_imports\nallow_slime_imports()\n"
    said = run(folder, code + "from slime.utils import http_utils, types\nprint(types.Sample, http_utils.__name__)")
    assert said == "theirs stream_rl.slime.engine"


def test_a_sample_grows_as_slimes_does() -> None:
    sample = Sample(prompt="q", tokens=[1, 2])
    sample.append_response_tokens(
        tokens=[3, 4], log_probs=[-0.1, -0.2], meta_info={"finish_reason": {"type": "stop"}, "weight_version": "7"}
    )
    sample.append_response_tokens(tokens=[5], trainable=False)
    assert sample.tokens == [1, 2, 3, 4, 5]
    assert (sample.loss_mask, sample.rollout_log_probs) == ([1, 1, 0], [-0.1, -0.2, 0.0])
    assert (sample.response_length, sample.effective_response_length) == (3, 2)
    assert (sample.status, sample.weight_versions) == (Sample.Status.COMPLETED, ["7"])
