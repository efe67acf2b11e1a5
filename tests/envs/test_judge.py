"""A language model as judge, behind a small endpoint: what its words become, and what its failures do not."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fake_judge import FakeJudge, Reply

from stream_rl.envs import judge as judge_module
from stream_rl.envs import judge_client
from stream_rl.envs.base import BaseInteractionEnv, EnvSample, ResumeClass, resume_class
from stream_rl.envs.judge import Judged, build_env, prompt
from stream_rl.errors import ActionError, ConfigError, EnvFatalError, EnvInfraError, EnvironmentLoadError

ARITHMETIC = EnvSample("What is 3 + 4?", 7)
GUESS = EnvSample("guess", 5)


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeJudge]]:
    """`serve(reply)`: a running endpoint."""
    running: list[FakeJudge] = []

    def start(reply: Callable[[str], Reply] | Reply) -> FakeJudge:
        running.append(FakeJudge(reply if callable(reply) else lambda _: reply).__enter__())
        return running[-1]

    yield start
    judge_module._client.cache_clear()
    for one in running:
        one.__exit__()


def judged(
    fake: FakeJudge | str, sample: EnvSample = ARITHMETIC, environment: str | None = None, **more: Any
) -> Judged:
    settings = {"url": fake if isinstance(fake, str) else fake.url, "model": "j", "timeout": 2.0, **more}
    return build_env(sample, SimpleNamespace(max_turns=4), judge=settings, environment=environment)


async def test_the_score_of_one_answer_is_its_reward(serve):
    fake = serve("Right.\n**Score: 7.5**")
    env = judged(fake, system_prompt="Be strict.")

    assert await env.reset() == ({}, {})
    _, done, info = await env.step("It is 7, $5 and {x}.")

    assert done
    assert info == {"reward": 0.75, "judge_score": 0.75}
    (body,) = fake.bodies
    assert (body["model"], body["temperature"]) == ("j", 0.0)
    assert body["messages"][0] == {"role": "system", "content": "Be strict."}
    question = body["messages"][1]["content"]
    assert all(part in question for part in ("What is 3 + 4?", "\n7\n", "It is 7, $5 and {x}."))


async def test_rewards_of_an_episode_add_up_to_the_newest_score_also_after_a_resume(serve):
    scores = iter(["Score: 4", "Score: 9", "Score: 1"])
    fake = serve(lambda _: next(scores))
    env = judged(fake, GUESS, "guess_number")
    await env.reset()

    first = await env.step("3")
    second = await env.step("7")
    assert (first[0]["obs_str"], second[0]["obs_str"]) == ("higher", "lower")
    assert resume_class(env) is ResumeClass.SNAPSHOT
    resumed = judged(fake, GUESS, "guess_number")
    resumed.load_state_dict(env.state_dict())
    cut = await resumed.cut("4 4 4")

    assert [step["reward"] for step in (first[2], second[2], cut)] == pytest.approx([0.4, 0.5, -0.8])


async def test_feedback_is_read_by_the_model_and_leaves_the_environments_reward(serve):
    fake = serve("<think>Score: 3</think>Try the middle.\nScore: 2")
    env = judged(fake, GUESS, "guess_number", gives="feedback", question="$observation after $response")

    observation, done, info = await env.step("3")

    assert observation["obs_str"] == "higher\nTry the middle."
    assert (done, info) == (False, {"reward": 0.1})
    assert fake.bodies[0]["messages"][0]["content"] == "higher after 3"


async def test_without_an_environment_both_lets_the_model_try_again_until_it_passes(serve):
    scores = iter(["Nearly. Score: 5", "Good. Score: 9"])
    env = judged(serve(lambda _: next(scores)), gives="both", pass_score=0.9)

    first, second = await env.step("8"), await env.step("7")
    assert (first[0]["obs_str"], first[1], second[1]) == ("Nearly.", False, True)
    assert first[2]["reward"] + second[2]["reward"] == pytest.approx(0.9)


async def test_a_mistake_of_the_model_is_not_judged_and_takes_nothing_from_the_judges_score(serve):
    fake = serve("Good. Score: 10")
    judging, helping = judged(fake, GUESS, "guess_number"), judged(fake, GUESS, "guess_number", gives="feedback")
    for env, expected in ((judging, 0.0), (helping, -0.05)):
        await env.step("3")
        asked = len(fake.bodies)
        with pytest.raises(ActionError, match="invalid") as mistake:
            await env.step("twelve")
        assert mistake.value.reward == pytest.approx(expected)
        assert len(fake.bodies) == asked
    await helping.step("5")
    assert len(fake.bodies) == asked, "nobody reads what is said at the end"


async def test_equal_questions_are_asked_once_and_few_at_a_time(serve):
    fake = serve("Score: 10")
    envs = [judged(fake, concurrency=3, cache_size=8) for _ in range(30)]

    await asyncio.gather(*(env.step(str(number % 10)) for number, env in enumerate(envs)))
    assert len(fake.bodies) == 10
    assert fake.most_open == 3
    await judged(fake, concurrency=3, cache_size=8).step("9")
    assert len(fake.bodies) == 10
    await judged(fake, concurrency=3, cache_size=8).step("0")
    assert len(fake.bodies) == 11, "only the newest eight are remembered"


@pytest.mark.parametrize("bad", [503, 429, "I do not know.", "Score (0-10): 11", "Score: -1", ""])
async def test_an_answer_of_no_use_is_asked_for_again(serve, bad):
    replies = iter([bad, "Score: 10"])
    assert (await judged(serve(lambda _: next(replies))).step("7"))[2]["reward"] == 1.0


def saying(content: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}}]}


async def test_an_answer_may_come_in_parts(serve):
    parts = [{"type": "text", "text": "Good. "}, {"type": "text", "text": "Score: 10"}]
    assert (await judged(serve(saying(parts))).step("7"))[2]["reward"] == 1.0


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (500, "status 500: not now"),
        (401, "api_key_env name the right key"),
        (404, r"are environment\.args\.judge\.url, often with /v1 at its end, and model right"),
        ("Hm.", "no score"),
        (60.0, "Timeout"),
        (saying(None), "no score"),
        (saying(7), "no chat completion"),
        (saying({"text": "Score: 10"}), "no chat completion"),
        (saying([{"type": "image_url"}]), "no chat completion"),
        ({"choices": []}, "no chat completion"),
        ({"choices": None}, "no chat completion"),
        ({"error": "overloaded"}, "no chat completion"),
    ],
)
async def test_a_judge_that_fails_is_the_worlds_fault(serve, reply, reason):
    fake = serve(reply)
    with pytest.raises(EnvInfraError, match=reason):
        await judged(fake, attempts=2, timeout=0.3).step("7")
    assert len(fake.bodies) == 2


async def test_a_judge_that_is_not_there_is_the_worlds_fault():
    with pytest.raises(EnvInfraError, match="gave no answer in 1 attempts"):
        await judged("http://127.0.0.1:9/v1", attempts=1).step("7")


async def test_a_question_that_is_refused_ends_the_sample_and_is_not_repeated(serve):
    fake = serve(400)
    with pytest.raises(EnvFatalError, match="refuses a question: not now"):
        await judged(fake).step("7")
    assert len(fake.bodies) == 1


async def test_a_step_that_was_given_up_finds_the_answer_when_it_is_tried_again(serve):
    fake = serve(0.3)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await judged(fake).step("7")
    assert (await judged(fake).step("7"))[2]["reward"] == 1.0
    assert len(fake.bodies) == 1


@pytest.mark.parametrize("threaded", [False, True])
async def test_no_question_waits_longer_than_its_deadline_not_even_for_its_turn(serve, threaded):
    env = judged(serve(1.5), concurrency=1, deadline=0.2, timeout=5.0)
    step = env.step

    async def in_a_thread(text: str) -> Any:
        return await asyncio.to_thread(env._client.run, step(text))

    ask = in_a_thread if threaded else step
    held = asyncio.create_task(ask("first"))
    await asyncio.sleep(0.05)
    for late in (ask("second"), held):
        with pytest.raises(EnvInfraError, match=r"no answer of the judge at .* within 0\.2 seconds") as lost:
            await late
        assert lost.value.cause == "timeout"


def test_a_client_that_does_not_end_says_so(serve, monkeypatch):
    monkeypatch.setattr(judge_client, "CLOSE_SECONDS", 0.1)
    client, going = judged(serve("Score: 10"))._client, threading.Event()
    client._loop.call_soon_threadsafe(going.wait, 30)
    with pytest.raises(EnvInfraError, match="does not end"):
        client.close()
    going.set()
    client._thread.join(10)
    assert not client._thread.is_alive()


def test_a_sync_environment_is_judged_in_its_thread(serve, monkeypatch):
    class Blocking(BaseInteractionEnv):
        def reset(self):
            return {"obs_str": "begin"}, {}

        def step(self, response_text):
            return {"obs_str": "next"}, False, {"reward": 5.0}

    module = ModuleType("blocking_env")
    module.build_env = lambda sample=None, args=None, **_: Blocking()
    monkeypatch.setitem(sys.modules, "blocking_env", module)
    monkeypatch.setattr("stream_rl.envs.loading.is_module", lambda _: True)
    judge_module._inner.cache_clear()

    env = judged(serve("Score: 5"), environment="blocking_env")
    assert env.reset() == ({"obs_str": "begin"}, {})
    assert env.step("x") == ({"obs_str": "next"}, False, {"reward": 0.5, "judge_score": 0.5})
    assert env.cut("y")["reward"] == 0.0
    assert resume_class(env) is ResumeClass.RESTART


async def test_the_key_is_sent_and_stands_in_no_settings(serve, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "k3y")
    fake = serve("Score: 10")
    await judged(fake, api_key_env="JUDGE_KEY", request={"top_p": 0.5}).step("7")
    assert fake.headers[0]["Authorization"] == "Bearer k3y"
    assert fake.bodies[0]["top_p"] == 0.5


@pytest.mark.parametrize(
    ("more", "error", "reason"),
    [
        ({"judge": None}, ConfigError, r"environment\.args\.judge\.url: Field required"),
        ({"url": "127.0.0.1:9/v1"}, ConfigError, r"judge\.url: '127\.0\.0\.1:9/v1' is no base address"),
        ({"url": "http://127.0.0.1:99999/v1"}, ConfigError, r"judge\.url: .*:99999/v1' is no base"),
        ({"question": "Is $answer right?"}, ConfigError, r"judge\.question: \$answer is no field"),
        ({"question": "5 $ for $response"}, ConfigError, r"a \$ that names none"),
        ({"gives": "feedback"}, ConfigError, "needs an environment"),
        ({"api_key_env": "NO_SUCH_KEY"}, ConfigError, "NO_SUCH_KEY is not set"),
        ({"environment": "no_such_env"}, EnvironmentLoadError, "no_such_env"),
    ],
)
def test_wrong_settings_are_named_before_anything_is_asked(more, error, reason):
    settings = {"url": "http://127.0.0.1:9/v1", "model": "j", **more}
    environment = settings.pop("environment", None)
    with pytest.raises(error, match=reason):
        build_env(ARITHMETIC, None, judge=settings.pop("judge", settings), environment=environment)


def test_prompts_are_those_of_the_environment():
    made = prompt(3, 4, SimpleNamespace(environment="arithmetic", max_turns=1))
    assert made["label"] == sum(int(word.strip("?")) for word in made["prompt"].split() if word.strip("?").isdigit())
    with pytest.raises(EnvironmentLoadError, match=r"set data\.path"):
        prompt(3, 4, SimpleNamespace())
