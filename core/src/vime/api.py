"""All that a plugin may import: `from vime.api import hookimpl, Sample, ...`."""

from __future__ import annotations

from vime.data.prompts import encode_prompt
from vime.engine.base import Engine, HttpSession, SamplingParams, current_engine, http_session
from vime.errors import ConfigError, ContractError, DataError, EngineError, PluginError, VimeError
from vime.isolation import IsolatedPool, IsolatedTimeout, reward_limit_paused
from vime.outputs import DynamicFilterOutput, Generation, RolloutFnEvalOutput, RolloutFnTrainOutput
from vime.plugins.hookspecs import hookimpl
from vime.plugins.settings import Settings
from vime.rollout.built_in import generate_rollout, generate_rollout_async
from vime.sample import Sample, Status, rollouts

__all__ = [
    "ConfigError",
    "ContractError",
    "DataError",
    "DynamicFilterOutput",
    "Engine",
    "EngineError",
    "Generation",
    "HttpSession",
    "IsolatedPool",
    "IsolatedTimeout",
    "PluginError",
    "RolloutFnEvalOutput",
    "RolloutFnTrainOutput",
    "Sample",
    "SamplingParams",
    "Settings",
    "Status",
    "VimeError",
    "current_engine",
    "encode_prompt",
    "generate_rollout",
    "generate_rollout_async",
    "hookimpl",
    "http_session",
    "reward_limit_paused",
    "rollouts",
]
