"""The parts of a run that are built from its configuration alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from vime.data.dataset import load_dataset
from vime.rollout.data_source import DataSource, RolloutDataSourceWithBuffer
from vime.rollout.debug_data import count_rollouts
from vime.rollout.evaluate import EvalDataset
from vime.rollout.source_guards import check_data_source
from vime.rollout.unchanged import watched
from vime.train.precision import engine_dtype_name, train_dtype_name

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import PluginManager

HOOK_THREADS = 128
"""Synchronous rollout and generate functions that may block at the same time."""


def build_data_source(config: RunConfig, plugins: PluginManager, tokenizer: Any) -> DataSource:
    """The data source of a plugin or of --data-source-path, else the prompts of --prompt-data with a buffer."""
    buffer_filter: Any = plugins.claimed("buffer_filter")
    claimed = plugins.claimed("make_data_source")
    if claimed is not None:
        with watched(config, claimed):
            source = claimed.run(args=config)
        check_data_source(claimed.label, source)
        if isinstance(source, RolloutDataSourceWithBuffer) and source.buffer_filter is None:
            source.buffer_filter = buffer_filter
        return source
    # The number of rollouts bounds the run, not the source: epochs wrap as often as filters make it necessary.
    endless = config.model_copy(update={"num_rollout": config.num_rollout or 0})
    return RolloutDataSourceWithBuffer(endless, tokenizer=tokenizer, buffer_filter=buffer_filter)


def build_eval_datasets(config: RunConfig, tokenizer: Any) -> list[EvalDataset]:
    """The rows of every dataset of `args.eval_datasets`."""
    return [
        EvalDataset(
            dataset,
            load_dataset(
                dataset.path,
                tokenizer=tokenizer,
                input_key=dataset.input_key or config.input_key,
                label_key=dataset.label_key or config.label_key,
                metadata_key=dataset.metadata_key or config.metadata_key,
                tool_key=dataset.tool_key or config.tool_key,
                apply_chat_template=bool(dataset.apply_chat_template),
                apply_chat_template_kwargs=dataset.apply_chat_template_kwargs or {},
                skip_bad_rows=config.skip_bad_rows,
                may_be_empty=True,
            ),
        )
        for dataset in config.eval_datasets
    ]


def concurrent_requests(config: RunConfig, datasets: Sequence[EvalDataset]) -> int:
    """The most requests that rollouts and evaluations have in flight at once."""
    wave = (config.over_sampling_batch_size or config.rollout_batch_size) * config.n_samples_per_prompt
    evaluation = sum(len(dataset.rows) * (dataset.config.n_samples_per_eval_prompt or 1) for dataset in datasets)
    if config.pipeline == "continuous":
        return ((config.max_staleness or 0) + 1) * config.samples_per_rollout + evaluation
    return max(wave, evaluation)


def planned_rollouts(config: RunConfig, source: DataSource | None) -> int:
    """The rollouts of a training run: as configured, as many as were saved, or those of its epochs."""
    if config.num_rollout is not None:
        return config.num_rollout
    if config.load_debug_rollout_data is not None:
        return count_rollouts(config.load_debug_rollout_data)
    assert source is not None
    return max(1, len(source) * (config.num_epoch or 1) // config.rollout_batch_size)


def engine_dtype(config: RunConfig, model_path: str, *, on_cpu: bool) -> str:
    """The number format of an engine `on_cpu` or on GPUs: as configured, else what goes with the one that a trainer has there."""
    if config.engine_dtype != "auto":
        return config.engine_dtype
    from vime.train.model_loading import count_parameters

    return engine_dtype_name("auto", train_dtype_name(config.train_dtype, count_parameters(model_path), on_cpu=on_cpu), on_cpu=on_cpu)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of a run, with threads enough for its synchronous rollout and generate functions, which may block."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(HOOK_THREADS, "vime-hook"))
    return loop


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
