"""The environment interface, and the environments that ship."""

from stream_rl.envs.base import BaseInteractionEnv, EnvSample, ResumeClass, resume_class
from stream_rl.envs.loading import EnvironmentModule, load_environment

__all__ = ["BaseInteractionEnv", "EnvSample", "EnvironmentModule", "ResumeClass", "load_environment", "resume_class"]
