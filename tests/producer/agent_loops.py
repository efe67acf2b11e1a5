"""Agent loops of every kind, for the tests. `CALLS` is what outlives them."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from picture_env import picture

from stream_rl.agents import AgentLoop, current_context
from stream_rl.errors import ActionError, EnvInfraError
from stream_rl.slime.engine import GenerateState, post
from stream_rl.slime.types import Sample

CALLS: list[str] = []
FAULTS: list[BaseException | float] = []


def note(call: str) -> str:
    CALLS.append(call)
    if FAULTS and call.startswith("act"):
        fault = FAULTS.pop(0)
        if isinstance(fault, BaseException):
            raise fault
    return call


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


class Guessing(AgentLoop):
    """Answers every guess by how it compares with the label, through the world's functions."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> float:
        context, guesses = self.context, 0
        try:
            await context.once(note, "once start")
            while True:
                answer = await context.generate()
                guesses += 1
                await context.act(note, f"act {answer.text}")
                await context.once(note, f"once {answer.text}")
                guess = int(answer.text) if answer.text.isdigit() else None
                if guess == kwargs["label"]:
                    return 1.0
                if guess is None:
                    context.parse_failure()
                    context.observe(user("invalid"))
                else:
                    context.reward(0.25)
                    context.observe(user("higher" if guess < kwargs["label"] else "lower"))
        finally:
            CALLS.append(f"end {guesses}")


class Snapshot(AgentLoop):
    """Keeps its count itself, and says so in its observations."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.count = 0

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> None:
        if self.count == 0:
            self.context.observe(user("0"))
        while True:
            answer = await self.context.generate()
            CALLS.append(f"answer {answer.text} turn {self.context.turn}")
            self.count += 1
            await self.context.act(note, "act")
            self.context.observe(user(str(self.count)))

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        CALLS.append(f"load {state['count']}")
        self.count = state["count"]


class Restarting(Guessing):
    deterministic = False


class Drifting(AgentLoop):
    """Observes another thing every time that it runs."""

    runs: ClassVar[int] = 0

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> None:
        type(self).runs += 1
        while True:
            await self.context.generate()
            self.context.observe(user(str(self.runs)))


class Silent(AgentLoop):
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> None:
        return None


class Careless(AgentLoop):
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> None:
        await self.context.generate()
        raise ActionError("never caught")


class Stuck(AgentLoop):
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> None:
        await self.context.generate()
        await asyncio.Event().wait()


class Showing(AgentLoop):
    """Answers with a picture every time, made of the turn's number."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> None:
        while True:
            await self.context.generate()
            shown = picture(self.context.turn, self.context.args.side)
            self.context.observe({"role": "user", "content": [{"type": "image", "image": shown}]})


class NoRun:
    def __init__(self, context: Any) -> None:
        pass


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """A rollout function that uses the context."""
    context = current_context()
    first = await context.generate()
    second = await context.generate(user("lower"))
    sample.response = first.text + second.text
    sample.reward = {"score": float(second.text == str(sample.label)), "turns": args.max_turns}
    return sample


async def slime_generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """A rollout function as slime's users write them, down to its tokens."""
    state = GenerateState(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    sample.tokens = state.tokenizer.encode(sample.prompt, add_special_tokens=False)
    for _ in range(args.max_turns):
        output = await post(url, {"input_ids": sample.tokens, "sampling_params": sampling_params})
        new = [item[1] for item in output["meta_info"]["output_token_logprobs"]]
        sample.append_response_tokens(args, tokens=new, trainable=True, meta_info=output["meta_info"])
        if output["text"] == str(sample.label):
            sample.reward = 1.0
            return sample
        said = state.tokenizer.encode("\n<|im_start|>user\nlower<|im_end|>\n<|im_start|>assistant\n")
        sample.append_response_tokens(args, tokens=said, trainable=False)
    sample.reward = 0.0
    return sample


async def returning(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Plays as `slime_generate`, and returns the sample with what `args.returned` says."""
    sample = await slime_generate(args, sample, sampling_params)
    for name, value in args.returned.items():
        setattr(sample, name, value)
    return sample


async def placing(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Sends ids in which a placeholder stands for no image."""
    await post("", {"input_ids": GenerateState(args).tokenizer.encode(f"{sample.prompt}<|image_pad|>")})
    return sample


async def posting(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> None:
    """Asks for what `args.payload` says."""
    await post("", args.payload)


async def retokenising(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Forgets what the model wrote."""
    ids = GenerateState(args).tokenizer.encode(sample.prompt)
    await post("", {"input_ids": ids})
    await post("", {"input_ids": [*ids, ids[0]]})
    return sample


async def whole_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> None:
    """slime's function of a whole rollout."""


def down() -> EnvInfraError:
    return EnvInfraError("world down")
