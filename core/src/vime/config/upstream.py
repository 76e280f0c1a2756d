"""What slime and the Megatron vime had and this one has not: its flags with what replaces them, its reward names."""

from __future__ import annotations

REWARD_ALIASES = {"remote-rm": "remote", "gpqa": "choice"}
"""Upstream's names for `--rm-type`, as PEP 503 compares them, that differ from the plugin's. Others (math, dapo, f1, ...) are the same."""
REWARD_DISTRIBUTIONS = {
    "math": "vime-rm-math",
    "dapo": "vime-rm-math",
    "deepscaler": "vime-rm-math",
    "remote": "vime-rm-remote",
    "exact": "vime-rm-qa",
    "f1": "vime-rm-qa",
    "choice": "vime-rm-qa",
    "format": "vime-rm-qa",
    "random": "vime-rm-qa",
}
"""Which distribution to install for a reward."""

_ARCHITECTURE = "leave it out: the model's own config.json says it"
_PARALLEL = "leave it out: DeepSpeed splits the training with --zero-stage, and the engine is split with --engine-tp"
_RECOMPUTE = "use --gradient-checkpointing"
_PLACEMENT = "use --trainer-ranks and --engines with --runtime ray; one process on one device needs neither"
_OFFLOAD = "leave it out: on one GPU engine and trainer take turns by themselves; --optimizer-offload moves the optimizer to the host"
_ENGINE = "the engine is vLLM: see the --vllm-* flags of vime train --help, or --vllm-engine-args for any other"
_SYNC = "leave it out: weights go to the engine through vLLM's own API, see --check-weights-every"
_PRECISION = "use --train-dtype"
_OPTIMIZER = "leave it out: the optimizer is AdamW, see --lr, --adam-beta1 and --weight-decay"
_RETRIES = "leave it out: a failed request is retried, see --generation-retries"
_TRANSPORT = "leave it out: samples stay in this process"
_TIMES = "leave it out: the times of a step and of its hooks are among the metrics, perf/ and hooks/"
_DUMPS = "use --save-debug-rollout-data; samples/ in the run's folder has the samples as they were trained"
_OWN_BUFFER = "name a function or class of your own with --rollout-function-path or --data-source-path"
_DISTILLATION = "there is no distillation: a plugin can put a teacher's term into the advantages, with the hook compute_advantages"
_ROUTING = "leave it out: routing of experts is not replayed; --use-tis corrects for what engine and trainer differ in"
_PARTS = "use --lora-rank with --lora-target-modules to train a part of the model"
_LOGGED = "leave it out: it is among the metrics, or add it in the hook log_rollout_data"
_OWN_CHECKS = "leave it out: it is for upstream's own tests"

_GROUPS: dict[str, str] = {
    _ARCHITECTURE: "num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups group_query_attention kv_channels "
    "max_position_embeddings seq_length position_embedding_type use_rotary_position_embeddings rotary_base rotary_percent normalization "
    "norm_epsilon swiglu disable_bias_linear add_qkv_bias qk_layernorm untie_embeddings_and_output_weights vocab_size "
    "padded_vocab_size make_vocab_size_divisible_by num_experts model_name spec tokenizer_type tokenizer_model attention_output_gate "
    "use_gated_attention post_self_attn_layernorm post_mlp_layernorm hidden_dropout attention_dropout",
    _PARALLEL: "tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size expert_model_parallel_size "
    "expert_tensor_parallel_size virtual_pipeline_model_parallel_size sequence_parallel use_distributed_optimizer "
    "decoder_last_pipeline_num_layers overlap_grad_reduce overlap_param_gather distributed_backend distributed_timeout_minutes "
    "allgather_cp",
    _RECOMPUTE: "recompute_granularity recompute_method recompute_num_layers recompute_activations recompute_loss_function",
    _PLACEMENT: "actor_num_nodes actor_num_gpus_per_node critic_num_nodes critic_num_gpus_per_node num_gpus_per_node rollout_num_gpus",
    _OFFLOAD: "offload offload_train offload_rollout release_train",
    _SYNC: "update_weight_mode update_weight_transport update_weight_disk_dir update_weight_buffer_size check_weight_update_equal "
    "update_weight_disk_keep_files update_weight_delta_encoding update_weight_delta_checksum flush_cache_interval",
    _PRECISION: "bf16 fp16 fp8 accumulate_allreduce_grads_in_fp32 attention_softmax_in_fp32",
    _OPTIMIZER: "optimizer optimizer_cpu_offload use_precision_aware_optimizer",
}
_ABSENT: dict[str, str] = {
    _OPTIMIZER: "reset_optimizer_states use_stateless_adam",
    _RETRIES: "rollout_health_check_interval rollout_health_check_timeout rollout_health_check_first_wait",
    _TRANSPORT: "transfer_backend mooncake_store_init_kwargs rollout_data_transport use_distributed_post",
    _TIMES: "profile_target memory_recorder record_memory_history memory_snapshot_dir memory_snapshot_num_steps train_memory_margin_bytes",
    _DUMPS: "save_debug_train_data dump_details load_debug_rollout_data_subsample",
    _OWN_BUFFER: "rollout_buffer_url fetch_trajectory_retry_times min_batch_collection_ratio rollout_task_type "
    "disable_rollout_global_dataset",
    _DISTILLATION: "use_opd opd_type opd_kl_coef opd_teacher_load opd_teacher_ckpt_step opd_teacher_model",
    _ROUTING: "use_routing_replay use_rollout_routing_replay",
    _PARTS: "only_train_params_name_list freeze_params_name_list",
    _LOGGED: "log_multi_turn log_reward_category log_correct_samples get_mismatch_metrics use_rollout_entropy",
    _OWN_CHECKS: "ci_test ci_disable_kl_checker ci_save_grad_norm ci_load_grad_norm",
    "use --use-tis with --tis-mode mask, or the hook importance_weights": "use_opsm opsm_delta",
    "leave it out: the model is what transformers makes of --hf-checkpoint": "custom_model_provider_path qwen_gdn_backend",
    "leave it out: old log-probs are those of the policy before its first step on a rollout": "keep_old_actor",
    "leave it out: weights go to the engine after every rollout": "update_weights_interval custom_delta_pre_push_path",
    "leave it out: prompts are text; images and audio are not read": "multimodal_keys",
    "leave it out: the text of a response is what its tokens say": "rollout_skip_special_tokens",
    "shorten the data, or use --vllm-max-model-len": "eval_max_prompt_len",
    "set the variable in the environment of vime train": "train_env_vars http_proxy",
    "use --load-debug-rollout-data": "load_forge_rollout_data",
    "leave it out: heads for the prediction of several tokens are not trained": "enable_mtp_training",
    "leave it out: the steps of metrics are the rollouts": "wandb_always_use_train_step",
    "leave it out: a run is named by --name": "disable_wandb_random_suffix",
    "set the environment variable WANDB_RUN_ID": "wandb_run_id",
    "set the environment variable WANDB_DIR": "wandb_dir",
    "leave it out: events are in tensorboard/ of the run's folder, see --run-dir": "tb_project_name tb_experiment_name",
}
"""What vime has not, though it belongs to no backend."""
_SINGLE: dict[str, str] = {
    "optimizer_cpu_offload": "use --optimizer-offload",
    "rollout_num_gpus_per_engine": "use --engine-tp with --runtime ray",
    "sglang_mem_fraction_static": "use --vllm-gpu-memory-utilization",
    "sglang_context_length": "use --vllm-max-model-len",
    "sglang_max_running_requests": "use --vllm-max-num-seqs",
    "sglang_chunked_prefill_size": "use --vllm-max-num-batched-tokens",
    "sglang_max_prefill_tokens": "use --vllm-max-num-batched-tokens",
    "sglang_disable_cuda_graph": "use --vllm-enforce-eager",
    "sglang_disable_radix_cache": "use --no-vllm-enable-prefix-caching",
    "sglang_dtype": "use --engine-dtype",
    "sglang_tp_size": "use --engine-tp with --runtime ray",
    "sglang_server_concurrency": "use --vllm-max-num-seqs",
    "rollout_max_context_len": "use --vllm-max-model-len",
    "eval_max_context_len": "use --vllm-max-model-len",
    "attention_backend": "use --attn-implementation",
    "rollout_external_engine_addrs": "leave it out: engines are started by the run",
    "custom_config_path": "give settings to a plugin: plugin_settings in the file, or --set plugin.key=value",
    "train_backend": "leave it out: the trainer is DeepSpeed",
    "train_iters": "use --num-rollout",
    "train_samples": "use --num-rollout",
    "adam_eps_inside_sqrt": _OPTIMIZER,
    "balance_data": "leave it out: micro-batches are always packed by length",
    "balance_by_flops": "leave it out: micro-batches are always packed by length",
    "data_pad_size_multiplier": "leave it out: batches are packed by length",
    "log_probs_max_tokens_per_gpu": "use --max-tokens-per-gpu",
    "save_hf": "leave it out: every checkpoint is in Hugging Face format, see --save",
    "no_save_optim": "leave it out: --keep-checkpoints bounds what is kept",
    "async_save": "leave it out",
    "ref_ckpt_step": "give the folder of the checkpoint to --ref-load",
    "ckpt_step": "give the folder of the checkpoint to --load",
    "start_rollout_id": "leave it out: --load knows where the run stood",
    "compute_advantages_and_returns": "use --loss-type",
    "disable_compute_advantages_and_returns": "use --loss-type sft_loss or custom_loss",
    "loss_mask_type": "leave it out: the tokenizer's chat template gives the mask",
    "wandb_group": "set the environment variable WANDB_RUN_GROUP",
    "wandb_key": "set the environment variable WANDB_API_KEY",
    "wandb_mode": "set the environment variable WANDB_MODE",
    "wandb_team": "set the environment variable WANDB_ENTITY",
    "wandb_host": "set the environment variable WANDB_BASE_URL",
    "log_passrate": "leave it out: eval/<name>-pass@k is always logged",
    "use_fault_tolerance": _RETRIES,
}
_PREFIXES = {
    "sglang_": _ENGINE,
    "router_": _ENGINE,
    "use_slime_router": _ENGINE,
    "moe_": _ARCHITECTURE,
    "mtp_": _ARCHITECTURE,
    "megatron_": "leave it out: the trainer is DeepSpeed, see --deepspeed-config for its settings",
    "custom_megatron_": "leave it out: the trainer is DeepSpeed; plugins change the loss and the data through hooks",
    "recompute_": _RECOMPUTE,
    "update_weight_": _SYNC,
    "straw_": _TRANSPORT,
}


def replacement(field: str) -> str | None:
    """What to do instead of an upstream flag that vime has not; None where the name is not upstream's."""
    if field in _SINGLE:
        return _SINGLE[field]
    for text, names in (*_GROUPS.items(), *_ABSENT.items()):
        if field in names.split():
            return text
    return next((text for prefix, text in _PREFIXES.items() if field.startswith(prefix)), None)


def why_absent(field: str) -> str:
    """Why a flag with a `replacement` is not there, as the second half of a sentence."""
    if any(field in names.split() for names in _ABSENT.values()):
        return "it is a flag of slime that vime does not have"
    return "it belongs to Megatron or SGLang, and vime trains with DeepSpeed and vLLM"
