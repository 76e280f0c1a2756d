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
    _PLACEMENT: "actor_num_nodes actor_num_gpus_per_node critic_num_nodes critic_num_gpus_per_node num_gpus_per_node "
    "rollout_num_gpus colocate",
    _OFFLOAD: "offload offload_train offload_rollout release_train",
    _SYNC: "update_weight_mode update_weight_transport update_weight_disk_dir update_weight_buffer_size check_weight_update_equal "
    "update_weight_disk_keep_files update_weight_delta_encoding update_weight_delta_checksum flush_cache_interval",
    _PRECISION: "bf16 fp16 fp8 accumulate_allreduce_grads_in_fp32 attention_softmax_in_fp32",
    _OPTIMIZER: "optimizer optimizer_cpu_offload use_precision_aware_optimizer",
}
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
    "wandb_project": "set the environment variable WANDB_PROJECT",
    "wandb_group": "set the environment variable WANDB_RUN_GROUP",
    "wandb_key": "set the environment variable WANDB_API_KEY",
    "wandb_mode": "set the environment variable WANDB_MODE",
    "wandb_team": "set the environment variable WANDB_ENTITY",
    "wandb_host": "set the environment variable WANDB_BASE_URL",
    "log_passrate": "leave it out: eval/<name>-pass@k is always logged",
    "use_fault_tolerance": "leave it out: a failed request is retried, see --generation-retries",
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
    "straw_": "leave it out: samples stay in this process",
}


def replacement(field: str) -> str | None:
    """What to do instead of an upstream flag that vime has not; None where the name is not upstream's."""
    if field in _SINGLE:
        return _SINGLE[field]
    for text, names in _GROUPS.items():
        if field in names.split():
            return text
    return next((text for prefix, text in _PREFIXES.items() if field.startswith(prefix)), None)
