"""The configuration, section by section: plugins, the run, model, data, rollout, rewards, evaluation.

Every field is a flag of the same name in kebab case, a key of the YAML file and an attribute of `args`. A default is
written here and nowhere else. What follows the rollout (training) is in train_sections.py.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from vime.config.fields import Count, CountOrZero, NonNegative, PathStr, Positive, PositiveFraction, Section, TopK, Word
from vime.config.reward_sum import RewardWeights
from vime.config.trackers import TrackerNames


class PluginSection(Section):
    """Plugins"""

    plugin: list[str] = Field(default_factory=list)
    """Plugins to enable, by entry-point name, in the order of calls; repeatable. Example: --plugin math --plugin nonzero-std."""
    no_plugin: list[str] = Field(default_factory=list)
    """Plugin to leave out although VIME_PLUGINS or the file enables it; repeatable."""
    plugin_settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings by plugin, as in the file: {math: {timeout: 5}}. On the command line use --set math.timeout=5."""
    ignore_plugin_lock: bool = False
    """Go on when the enabled plugins differ from those the checkpoint was written with."""
    check_hooks: bool = False
    """Also check that no hook changes what it may only read: the samples field by field, and the configuration. For tests: slow."""
    trace_hooks: bool = False
    """Print a line for each hook call: plugin, hook, milliseconds."""


class HookPathSection(Section):
    """Functions by path: pkg.mod.fn or ./file.py:fn"""

    rollout_function_path: str | None = None
    """Function that makes a whole rollout: hook generate_rollout."""
    eval_function_path: str | None = None
    """Function that makes an evaluation; without it the rollout function does."""
    custom_generate_function_path: str | None = None
    """Function that generates for one sample: hook custom_generate."""
    custom_rm_path: str | None = None
    """Reward function: hook custom_rm. Called with (args, sample), or with (args, samples) of a group under --group-rm."""
    dynamic_sampling_filter_path: str | None = None
    """Function that keeps or drops a group: hook dynamic_sampling_filter."""
    buffer_filter_path: str | None = None
    """Function that chooses groups out of the buffer: hook buffer_filter."""
    rollout_sample_filter_path: str | None = None
    """Function that marks samples of the kept groups with remove_sample: hook rollout_sample_filter."""
    rollout_all_samples_process_path: str | None = None
    """Function that sees all groups, dropped ones too: hook process_all_samples."""
    rollout_sample_hook_path: list[str] = Field(default_factory=list)
    """Function called on each sample after generation and before its reward: hook rollout_sample_hook; repeatable."""
    custom_reward_post_process_path: str | None = None
    """Function that turns raw rewards into shaped ones: hook post_process_rewards."""
    custom_convert_samples_to_train_data_path: str | None = None
    """Function that turns samples into training data: hook convert_samples_to_train_data."""
    rollout_data_postprocess_path: str | None = None
    """Function that changes the training data in place before the step: hook rollout_data_postprocess."""
    custom_advantage_function_path: str | None = None
    """Function that computes advantages and returns: hook compute_advantages."""
    custom_loss_function_path: str | None = None
    """Function that computes the loss: hook policy_loss, with --loss-type custom_loss."""
    custom_tis_function_path: str | None = None
    """Function that weights the loss by importance: hook importance_weights."""
    custom_pg_loss_reducer_function_path: str | None = None
    """Function that returns the reducer of the policy-gradient loss: hook pg_loss_reducer."""
    custom_rollout_log_function_path: str | None = None
    """Function that logs a rollout: hook log_rollout_data."""
    custom_eval_rollout_log_function_path: str | None = None
    """Function that logs an evaluation: hook log_eval_rollout_data."""
    data_source_path: str | None = None
    """Class that serves the prompts: hook make_data_source."""


class RunSection(Section):
    """Run"""

    name: str | None = None
    """Name of the run, part of its folder; without it the name of the model's folder."""
    run_dir: PathStr | None = None
    """Folder of the run; without it runs/<date>-<name>."""
    num_rollout: CountOrZero | None = None
    """Number of rollouts, each followed by training. 0 evaluates only. Goes before num_epoch."""
    num_epoch: Count | None = None
    """Number of passes over the prompts, where num_rollout is not set; without either one pass."""
    rollout_seed: int = 42
    """Seed of the order of the prompts, of sampling and of the trainer. Alias: --seed."""
    deterministic: bool | None = None
    """Make two runs with one seed equal, bit by bit; without it on where that is free: on the CPU in one process."""
    runtime: Literal["local", "ray"] = "local"
    """Where engine and trainer live: in this process, or as Ray actors."""
    pipeline: Literal["sync", "async", "continuous"] = "sync"
    """Whether a rollout waits for the training on the one before it (sync), runs beside it (async), or never stops (continuous)."""
    save: PathStr | None = None
    """Folder of the checkpoints; without it checkpoints/ in the run's folder."""
    save_interval: Count | None = None
    """Rollouts between two checkpoints; without it only the end is saved."""
    keep_checkpoints: Count | None = None
    """Number of checkpoints to keep, the newest; without it all."""
    load: str | None = None
    """Checkpoint to go on from: a folder, or "auto" for the newest whole one of this name (or of --run-dir)."""
    track: TrackerNames | None = None
    """Where metrics go beside metrics.jsonl; without it to TensorBoard. Example: --track tensorboard,wandb."""
    track_project: str | None = None
    """Project (experiment in MLflow) of the run in these services; without it their own variables say, or it is vime."""
    tensorboard: bool = True
    """Write TensorBoard events into the run's folder: short for its name in --track."""
    wandb: bool = False
    """Send metrics to Weights & Biases too: short for its name in --track."""
    sample_every: CountOrZero = 1
    """Write the samples of every n-th rollout into samples/ in the run's folder, and those of every evaluation; 0 writes none."""
    trace_step: CountOrZero | None = None
    """Step, counted from 0, of which trace_step_N.json is written into the run's folder: where the time of each sample went."""
    quiet: bool = False
    """Print warnings, errors and the final summary only."""
    verbose: bool = False
    """Print every metric of every step, and what vLLM, DeepSpeed and others say instead of keeping that in logs/."""
    debug_rollout_only: bool = False
    """Generate and reward without a trainer."""
    debug_train_only: bool = False
    """Train without an engine, on the rollouts of --load-debug-rollout-data."""
    save_debug_rollout_data: PathStr | None = None
    """File to write each rollout to; {rollout_id} stands for its number. Example: debug/{rollout_id}.parquet."""
    load_debug_rollout_data: PathStr | None = None
    """Files to read the rollouts from, written by --save-debug-rollout-data; switches on debug_train_only."""


class ModelSection(Section):
    """Model and engine"""

    hf_checkpoint: PathStr | None = None
    """Folder of the model in Hugging Face format, or the name of one in the local Hugging Face cache. Alias: --model."""
    ref_load: PathStr | None = None
    """Folder of the reference model of the KL terms; without it hf_checkpoint."""
    engine_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the engine; auto takes the trainer's, or float32 for bfloat16 on a CPU that only emulates it."""
    check_weights_every: Count = 50
    """Weight syncs between two comparisons of the engine's log-probs with the trainer's."""
    check_weights_tolerance: Positive | None = None
    """Largest mean difference of log-probs in that comparison; without it 1e-3 in float32 and 5e-2 in bfloat16."""
    vllm_gpu_memory_utilization: PositiveFraction | None = None
    """Fraction of the GPU's memory for vLLM; without it vLLM's default."""
    vllm_kv_cache_gib: Positive | None = None
    """Size of the KV cache on the CPU in GiB; without it chosen from the model and the batch."""
    vllm_max_model_len: Count | None = None
    """Longest prompt plus response in tokens; without it what the model or the rollout's lengths allow."""
    vllm_max_num_seqs: Count | None = None
    """Most requests in one engine step; without it vLLM's default."""
    vllm_max_num_batched_tokens: Count | None = None
    """Most tokens in one engine step; without it vLLM's default."""
    vllm_enforce_eager: bool | None = None
    """Run without CUDA graphs and compilation; without it on the CPU only."""
    vllm_enable_prefix_caching: bool = True
    """Keep the keys and values of shared prefixes: the samples of a group share their prompt."""
    vllm_engine_args: dict[str, Any] = Field(default_factory=dict)
    """Any other engine arguments of vLLM as a mapping. Example: '{"swap_space": 2}'."""


class DataSection(Section):
    """Data"""

    prompt_data: str | None = None
    """Prompts: a .jsonl, .json, .parquet or .csv file, with a slice if wanted (train.jsonl@[0:1000]), or hf:DATASET[:SPLIT]."""
    input_key: str = "input"
    """Key of the prompt in a row: a string, or a list of chat messages."""
    label_key: str | None = None
    """Key of the right answer in a row, given to the reward as sample.label."""
    metadata_key: str = "metadata"
    """Key of the metadata in a row, a mapping; rows may lack it."""
    tool_key: str = "tools"
    """Key of the tools in a row, given to the chat template; rows may lack it."""
    apply_chat_template: bool = False
    """Wrap the prompt with the tokenizer's chat template."""
    apply_chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template as a mapping. Example: '{"enable_thinking": false}'."""
    rollout_max_prompt_len: Count | None = None
    """Longest prompt in tokens; longer ones are dropped and counted."""
    rollout_shuffle: bool = False
    """Shuffle the prompts anew in each epoch."""
    skip_bad_rows: bool = False
    """Count rows that cannot be read instead of stopping at the first."""


class RolloutSection(Section):
    """Rollout"""

    rollout_batch_size: Count = 32
    """Number of groups (prompts) in a rollout."""
    n_samples_per_prompt: Count = 8
    """Number of samples in a group; without it 8, and 1 under sft_loss."""
    over_sampling_batch_size: Count | None = None
    """Number of groups fetched at a time, any; without it rollout_batch_size."""
    rollout_temperature: Positive = 1.0
    """Sampling temperature; the trainer's log-probs use the same."""
    rollout_top_p: PositiveFraction = 1.0
    """Sample from the smallest set of tokens with this probability."""
    rollout_top_k: TopK = -1
    """Sample from the k likeliest tokens; -1 is all."""
    rollout_max_response_len: Count = 1024
    """Longest response in tokens."""
    rollout_min_new_tokens: CountOrZero = 0
    """Shortest response in tokens."""
    rollout_stop: list[Word] | None = None
    """Strings that end a response. Example: --rollout-stop '</answer>' 'User:'."""
    rollout_stop_token_ids: list[int] | None = None
    """Token ids that end a response. Example: --rollout-stop-token-ids 151643 151645."""
    rollout_repetition_penalty: Positive = 1.0
    """Penalty on tokens that are already there; 1 is none."""
    generation_retries: CountOrZero = 2
    """Attempts after a request that failed; then its sample is FAILED."""
    dynamic_sampling_max_rounds: Count = 10
    """Bound of dynamic sampling: at most this many times the larger of the two batch sizes is fetched for one rollout."""
    on_exhausted: Literal["error", "fallback", "underfill"] = "error"
    """At that bound: stop, fill up with dropped groups, or go on with fewer."""
    partial_rollout: bool = False
    """Keep the tokens of unfinished samples and continue them in a later rollout."""
    mask_offpolicy_in_partial_rollout: bool = False
    """Do not train the tokens that older weights generated."""
    max_staleness: CountOrZero | None = None
    """Weight versions between generation and training, at most: older groups are dropped from the buffer, counted. Without it no
    bound, and 1 where the pipeline is async or continuous, which waits rather than generate too far ahead."""
    serve_engine: CountOrZero | None = None
    """Port on which the engine also answers OpenAI-compatible requests on this machine; without a number any free one."""


class RewardSection(Section):
    """Rewards"""

    rm_type: str | None = None
    """Enabled plugin that scores the samples, where a row's metadata names none. boxed_<name>: the last box only. a+b: a sum."""
    reward_weights: RewardWeights | None = None
    """Weights in a sum, 1 where none is given. Example: --rm-type math+format --reward-weights math=1,format=0.2."""
    rm_url: str | None = None
    """Address of a remote reward service."""
    group_rm: bool = False
    """Score whole groups: the reward function gets all samples of a group at once."""
    reward_key: str | None = None
    """Key of the value to train on, where rewards are dicts; without it total, the key of sums."""
    eval_reward_key: str | None = None
    """The same for evaluation; without it reward_key."""
    on_reward_error: Literal["raise", "drop", "zero"] = "raise"
    """When a reward raises, times out or returns nonsense: stop, drop the sample, or give it 0. Always counted."""
    reward_timeout: Positive = 10.0
    """Seconds that one reward may take."""
    reward_isolation: Literal["auto", "process", "thread"] = "auto"
    """Where synchronous rewards run: killable worker processes, or threads that no limit can stop; auto: processes where it can."""
    reward_workers: Count | None = None
    """Number of worker processes or threads for rewards; without it chosen from the number of cores."""
    reward_concurrency: Count = 256
    """Most rewards under way at once."""


class EvalSection(Section):
    """Evaluation"""

    eval_interval: Count | None = None
    """Rollouts between two evaluations; needs eval_prompt_data or eval_config."""
    eval_prompt_data: list[str] | None = None
    """Datasets as names and paths in turn: --eval-prompt-data gsm test.jsonl easy easy.jsonl. A single path is named after its file."""
    eval_config: PathStr | None = None
    """YAML file of the datasets and their settings."""
    skip_eval_before_train: bool = False
    """Do not evaluate before the first step."""
    n_samples_per_eval_prompt: Count = 1
    """Number of samples for each prompt."""
    eval_temperature: NonNegative | None = None
    """Sampling temperature, 0 is greedy; without it rollout_temperature."""
    eval_top_p: PositiveFraction | None = None
    """As rollout_top_p; without it that."""
    eval_top_k: TopK | None = None
    """As rollout_top_k; without it that."""
    eval_max_response_len: Count | None = None
    """Longest response in tokens; without it rollout_max_response_len."""
    eval_min_new_tokens: CountOrZero | None = None
    """Shortest response in tokens; without it rollout_min_new_tokens."""
    eval_input_key: str | None = None
    """Key of the prompt; without it input_key."""
    eval_label_key: str | None = None
    """Key of the right answer; without it label_key."""
    eval_tool_key: str | None = None
    """Key of the tools; without it tool_key."""
    eval_success_threshold: float = 1.0
    """Reward from which a sample counts as solved in pass@k."""


class PlacementSection(Section):
    """Placement (--runtime ray)"""

    trainer_ranks: Count = 1
    """Number of trainer processes."""
    engines: Count = 1
    """Number of engines."""
    engine_tp: Count = 1
    """Tensor-parallel size of an engine: the devices that hold one copy of the model."""
    ray_address: str | None = None
    """Ray cluster to run on: host:port, or "auto" for the one of this machine; without it Ray is started here, for this run."""
    colocate: bool = False
    """Put trainer ranks and engines on the same devices; the engines sleep while the trainer works."""
    max_engine_restarts: CountOrZero = 3
    """Engines that may die and be started anew in one run; one more ends it."""
    engine_timeout: Positive = 600.0
    """Seconds in which an engine that has requests must make a step; one that does not is taken for dead."""
    sync_timeout: Positive = 600.0
    """Seconds in which every engine must have the new weights."""
    trainer_timeout: Positive = 1800.0
    """Seconds without a sign of life after which a trainer rank is given up; as long do the ranks wait for each other."""
