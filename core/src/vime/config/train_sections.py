"""The configuration of training: the algorithm, and how the trainer carries it out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from vime.config.fields import Count, CountOrZero, Fraction, NonNegative, PathStr, Positive, Section

Estimator = Literal["grpo", "gspo", "cispo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo"]
GROUP_ESTIMATORS = ("grpo", "gspo", "cispo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline")
"""Estimators whose baseline is the sample's own group: they need more than one sample per prompt."""


class AlgorithmSection(Section):
    """Algorithm"""

    advantage_estimator: Estimator = "grpo"
    """How rewards become advantages, and with them the default loss."""
    loss_type: Literal["policy_loss", "sft_loss", "custom_loss"] = "policy_loss"
    """What is minimised: the policy loss, the negative log-likelihood, or that of a plugin or --custom-loss-function-path."""
    eps_clip: Positive = 0.2
    """Clip range of the ratio, downwards (and upwards where eps_clip_high is not set)."""
    eps_clip_high: Positive | None = None
    """Clip range of the ratio, upwards; without it eps_clip."""
    eps_clip_c: Annotated[float, Field(gt=1)] | None = None
    """Lower bound of the dual clip for negative advantages; without it none."""
    value_clip: Positive = 0.2
    """How far an update may move a value (ppo)."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL penalty in the reward."""
    use_kl_loss: bool = False
    """Add a KL term to the loss."""
    kl_loss_coef: NonNegative = 0.0
    """Weight of the KL term in the loss."""
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = "k1"
    """Estimator of the KL divergence; low_var_kl is k3, clamped. In the loss k1 alone has no effect in the mean: use k2 or k3 there."""
    use_unbiased_kl: bool = False
    """Multiply the KL term of the loss by the ratio, so that its gradient is that of the divergence (k1, k3, low_var_kl)."""
    ref_update_interval: Count | None = None
    """Rollouts after which the reference model becomes the policy as it is then, again and again; without it it never changes."""
    ref_offload: bool = False
    """Keep the reference model in the memory of the host while it does not score; on the CPU it is there anyway."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    gamma: Fraction = 1.0
    """Discount of later rewards."""
    lambd: Fraction = 1.0
    """Lambda of generalised advantage estimation (ppo)."""
    rewards_normalization: bool = True
    """Subtract the group's baseline from the rewards and, where the estimator does, divide by its standard deviation."""
    disable_grpo_std_normalization: bool = False
    """Do not divide by the group's standard deviation."""
    normalize_advantages: bool = False
    """Whiten the advantages over the batch."""
    exclude_removed_from_baseline: bool = False
    """Leave samples with remove_sample out of the group's baseline too."""
    calculate_per_token_loss: bool = False
    """Average over all tokens of the batch: the same as --loss-aggregation token."""
    loss_aggregation: Literal["sample", "token", "constant"] = "sample"
    """Average token losses within samples and then over these, over all tokens, or by the longest allowed response (as dr_grpo does)."""
    use_rollout_logprobs: bool = False
    """Take the engine's log-probs as the old ones of the ratio."""
    use_tis: bool = False
    """Correct for the difference between engine and trainer by importance sampling, truncated or masked. On by default where
    the pipeline is async or continuous."""
    tis_mode: Literal["truncate", "mask"] = "truncate"
    """What happens to an importance weight out of bounds: it becomes the bound, or 0, which masks the loss there."""
    tis_clip: Positive = 2.0
    """Upper bound of the importance weight."""
    tis_clip_low: NonNegative = 0.0
    """Lower bound of the importance weight."""
    tis_level: Literal["token", "sequence", "geometric"] = "token"
    """Weights of tokens, of whole responses (the product of their tokens'), or the geometric mean of a response's tokens."""


class CriticSection(Section):
    """Critic (--advantage-estimator ppo)"""

    critic_load: PathStr | None = None
    """Folder of the model that the critic starts from, or a checkpoint of a run with a critic; without it hf_checkpoint."""
    critic_save: PathStr | None = None
    """Folder to write the critic's model to with each checkpoint, which holds it too."""
    critic_lr: NonNegative | None = None
    """Learning rate of the critic; without it lr."""
    critic_lr_warmup_iters: CountOrZero = 0
    """Optimizer steps of the critic's linear warm-up."""
    num_critic_only_steps: CountOrZero = 0
    """Rollouts at the start that train the critic only."""


class OptimizerSection(Section):
    """Optimizer and batches"""

    lr: NonNegative = 1e-6
    """Learning rate."""
    lr_decay_style: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up."""
    lr_decay_iters: Count | None = None
    """Optimizer steps until min_lr; without it all of the run."""
    lr_warmup_iters: CountOrZero = 0
    """Optimizer steps of linear warm-up."""
    min_lr: NonNegative = 0.0
    """Learning rate at the end of the decay."""
    weight_decay: NonNegative = 0.01
    """Weight decay of AdamW."""
    adam_beta1: Fraction = 0.9
    """First moment's decay."""
    adam_beta2: Fraction = 0.999
    """Second moment's decay."""
    adam_eps: Positive = 1e-8
    """Added to the root of the second moment."""
    clip_grad: NonNegative = 1.0
    """Largest gradient norm; 0 does not clip."""
    global_batch_size: Count | None = None
    """Samples in an optimizer step; without it all of the rollout, divided by num_steps_per_rollout."""
    num_steps_per_rollout: Count | None = None
    """Optimizer steps for each rollout; without it what global_batch_size gives."""
    micro_batch_size: Count | None = None
    """Samples in a forward pass; without it as many as max_tokens_per_gpu holds."""
    use_dynamic_batch_size: bool | None = None
    """Fill micro-batches up to max_tokens_per_gpu; without it on, unless micro_batch_size is set."""
    max_tokens_per_gpu: Count = 8192
    """Tokens in a forward pass under use_dynamic_batch_size; a longer sample goes alone."""
    max_bad_steps: Count = 3
    """Steps in a row with a loss or gradient that is not finite before the run stops; each is skipped and counted."""


class TrainerSection(Section):
    """Trainer (DeepSpeed)"""

    train_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the trainer; auto is float32 for small models on the CPU and bfloat16 otherwise."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """ZeRO stage: what is split over the ranks (0 nothing, 1 optimizer, 2 gradients, 3 parameters)."""
    attn_implementation: str = "auto"
    """Attention of the transformers model: auto, eager, sdpa, flash_attention_2, ..."""
    pack_sequences: bool | None = None
    """Lay the samples of a forward pass end to end instead of padding them; without it where attn_implementation is a flash attention."""
    share_prompts: bool | None = None
    """Compute the prompt that samples share once for all of them, where the model's attention allows it; without it on CPUs only."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, to save memory."""
    optimizer_offload: bool = False
    """Keep the optimizer's state in the memory of the host."""
    logprob_chunk_size: Count = 1024
    """Tokens whose logits exist at a time, in float32."""
    lora_rank: CountOrZero = 0
    """Rank of LoRA adapters; 0 trains all weights."""
    lora_alpha: Count = 16
    """Adapters count lora_alpha / lora_rank times."""
    lora_dropout: Fraction = 0.0
    """Has to stay 0: the trainer must compute the distribution that the engine samples from."""
    lora_target_modules: list[str] = Field(default_factory=lambda: ["all-linear"], min_length=1)
    """Linear layers that get adapters, by name, or all-linear: all but the head. Example: --lora-target-modules q_proj v_proj."""
    deepspeed_config: PathStr | None = None
    """JSON file with any other DeepSpeed settings."""
