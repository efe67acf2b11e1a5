"""The function that a user names to score samples, and what it is shown."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from rollouts import ScriptedEngines, play, replies

from stream_rl.config import EnvironmentConfig
from stream_rl.errors import ConfigError
from stream_rl.producer.scoring import load_reward
from stream_rl.slime.types import Sample


@pytest.fixture
def rewards(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("rewards")
    monkeypatch.setitem(sys.modules, "rewards", module)
    return module


def environment(path: str | None) -> EnvironmentConfig:
    return EnvironmentConfig(reward_path=path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("rewards", "environment.reward_path='rewards' is not there"),
        ("absent_module:f", "finds no module 'absent_module'"),
        ("rewards:absent", "has no 'absent'"),
        ("rewards.plane", "has no 'plane': did you mean 'plain'?"),
        ("rewards:number", "is no function"),
        ("rewards:plain", r"must be `async def plain\(args, sample\)`"),
        ("rewards:lonely", r"must take \(args, sample\): too many positional arguments"),
    ],
)
def test_what_cannot_score_is_refused(rewards: ModuleType, path: str, message: str) -> None:
    def plain(args: object, sample: object) -> float:
        return 1.0

    async def lonely(sample: object) -> float:
        return 1.0

    rewards.number, rewards.plain, rewards.lonely = 3, plain, lonely  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=message):
        load_reward(environment(path), None)  # type: ignore[arg-type]


def test_without_a_name_there_is_none() -> None:
    assert load_reward(environment(None), None) is None  # type: ignore[arg-type]


class TestWhatItSees:
    async def seen_after(self, rollout, rewards, answer, **settings) -> tuple[Sample, object]:
        seen: list[Sample] = []

        async def judge(args: SimpleNamespace, sample: Sample) -> object:
            seen.append(sample)
            return answer

        rewards.judge = judge
        loaded = rollout(**{"environment.reward_path": "rewards.judge", "rollout.max_turns": 2, **settings})
        sample, _ = await play(loaded, ScriptedEngines(replies("3 .", "3 .")))
        return seen[0], sample

    async def test_it_sees_the_trajectory_by_slimes_attributes(self, rollout, rewards):
        seen, sample = await self.seen_after(rollout, rewards, 0.75)

        assert sample.reward == 0.75
        assert seen.tokens == sample.tokens.tolist()
        assert len(seen.loss_mask) == len(seen.rollout_log_probs) == seen.response_length == sample.response_length
        assert seen.effective_response_length == 4
        assert seen.prompt.startswith("<|im_start|>user\nguess")
        assert seen.response.split("\n")[0] == "3"
        assert seen.label == sample.label
        assert (seen.status.value, seen.stop_reason) == ("truncated", "max_turns")
        assert [turn.complete for turn in seen.turns] == [True, True]

    async def test_a_mapping_gives_the_reward_by_its_key(self, rollout, rewards):
        answer = {"score": 0.5, "format": 1.0}
        _, sample = await self.seen_after(rollout, rewards, answer, **{"environment.reward_key": "score"})
        assert sample.reward == 0.5

    async def test_a_key_that_is_not_there_stops_the_run_by_its_name(self, rollout, rewards):
        with pytest.raises(
            ConfigError, match=r"reward_key=None is not in the answer of environment\.reward_path=.*: name one of score"
        ):
            await self.seen_after(rollout, rewards, {"score": 0.5})

    @pytest.mark.parametrize("answer", [None, "good", [1.0, 2.0], {"score": None}])
    async def test_what_is_no_number_stops_the_run_by_its_name(self, rollout, rewards, answer):
        with pytest.raises(
            ConfigError, match=r"the answer of environment\.reward_path='rewards\.judge' must be a number"
        ):
            await self.seen_after(rollout, rewards, answer, **{"environment.reward_key": "score"})

    async def test_a_callable_that_is_not_async_stops_the_run_by_its_name(self, rollout, rewards):
        class Judge:
            def __call__(self, args: object, sample: Sample) -> float:
                return 1.0

        rewards.judge = Judge()
        loaded = rollout(**{"environment.reward_path": "rewards.judge"})
        with pytest.raises(ConfigError, match="must be async, and its call gave 1"):
            await play(loaded, ScriptedEngines(replies("3 .", "3 .", "3 .", "3 .")))
