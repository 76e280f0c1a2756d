"""Hook specs of the training half of a step. The examples are doctests; docs/hooks.md is generated from them.

Legend: N samples of the batch, R response tokens of a row, K trained tokens (mask 1) of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vime.plugins.markers import hookspec

if TYPE_CHECKING:
    from torch import Tensor

    from vime.config.run_config import RunConfig
    from vime.sample import Sample


class TrainSpec:
    """Hooks from the kept samples to the optimizer step."""

    @hookspec
    def post_process_rewards(self, args: RunConfig, samples: list[Sample]) -> tuple[Sequence[float], Sequence[float]]:
        """Turns the rewards of a rollout into what becomes the advantages.

        Called: once for each training rollout, before convert_samples_to_train_data.
        Arguments: `samples` is the flat list of N samples; `sample.group_index` says which belong together. Groups may
        differ in size, and failed samples have no reward.
        Returns: (raw_rewards, rewards), each N finite numbers: what is logged, and what is trained on.
        Several plugins: one claims it; two are a conflict. Without any, the baseline of --advantage-estimator is used.

        Example:

        >>> from vime.api import Sample, hookimpl
        >>> @hookimpl
        ... def post_process_rewards(args, samples):
        ...     raw = [0.0 if sample.reward is None else sample.get_reward_value(args) for sample in samples]
        ...     groups = {}
        ...     for sample, reward in zip(samples, raw):
        ...         groups.setdefault(sample.group_index, []).append(reward)
        ...     means = {index: sum(rewards) / len(rewards) for index, rewards in groups.items()}
        ...     return raw, [reward - means[sample.group_index] for sample, reward in zip(samples, raw)]
        >>> post_process_rewards(args, [Sample(group_index=0, reward=1.0), Sample(group_index=0, reward=0.0)])
        ([1.0, 0.0], [0.5, -0.5])
        """
        raise NotImplementedError

    @hookspec
    def convert_samples_to_train_data(self, args: RunConfig, samples: list[Sample]) -> dict[str, list[Any]]:
        """Lays the samples out as the rows of the training batch.

        Called: once for each training rollout, after post_process_rewards, whose rewards it does not see.
        Arguments: `samples` is the flat list of the kept samples, removed ones too.
        Returns: a dict of equally long lists, one entry for each row: tokens (prompt then response), response_lengths,
        rewards (what is trained on), raw_reward, truncated (0 or 1), sample_indices, loss_masks (R of 0 and 1; zeros for a
        removed sample); optional: rollout_ids (rows of one rollout share one), rollout_log_probs (R numbers),
        weight_versions and lists of the plugin's own, which later hooks find in rollout_data.
        Several plugins: one claims it; two are a conflict. Without any, each sample is a row.

        Example:

        >>> from vime.api import Sample, hookimpl
        >>> @hookimpl
        ... def convert_samples_to_train_data(args, samples):
        ...     rewards = [sample.get_reward_value(args) for sample in samples]
        ...     masks = [sample.loss_mask or [1] * sample.response_length for sample in samples]
        ...     return {
        ...         "tokens": [sample.tokens for sample in samples],
        ...         "response_lengths": [sample.response_length for sample in samples],
        ...         "rewards": rewards,
        ...         "raw_reward": rewards,
        ...         "truncated": [int(sample.status is Sample.Status.TRUNCATED) for sample in samples],
        ...         "sample_indices": [sample.index for sample in samples],
        ...         "loss_masks": [[0] * len(mask) if s.remove_sample else mask for s, mask in zip(samples, masks)],
        ...     }
        >>> kept, removed = (Sample(tokens=[5, 6, 7], response_length=2, reward=1.0, remove_sample=remove) for remove in (False, True))
        >>> convert_samples_to_train_data(args, [kept, removed])["loss_masks"]
        [[1, 1], [0, 0]]
        """
        raise NotImplementedError

    @hookspec
    def compute_advantages(self, args: RunConfig, rollout_data: dict[str, Any]) -> None:
        """Replaces the advantage estimator.

        Called: once for each training rollout, after the log-probs are known. Not under `--loss-type sft_loss`, nor where
        no token is trained. A run with `--advantage-estimator ppo`, whose critic gives the advantages, refuses it.
        Arguments: `rollout_data` as in rollout_data_postprocess, without advantages and returns; its `rewards` are those
        of post_process_rewards.
        Returns: nothing; it sets rollout_data["advantages"] and rollout_data["returns"], R numbers (a list or a tensor) for
        each row.
        Several plugins: one claims it; two are a conflict. Without any, --advantage-estimator decides.

        Example:

        >>> from vime.api import hookimpl
        >>> @hookimpl
        ... def compute_advantages(rollout_data):
        ...     rows = zip(rollout_data["rewards"], rollout_data["response_lengths"])
        ...     rollout_data["advantages"] = rollout_data["returns"] = [[reward] * length for reward, length in rows]
        >>> data = {"rewards": [0.5, -0.5], "response_lengths": [2, 1]}
        >>> compute_advantages(data)
        >>> data["advantages"]
        [[0.5, 0.5], [-0.5]]
        """

    @hookspec
    def rollout_data_postprocess(self, args: RunConfig, rollout_id: int, rollout_data: dict[str, Any]) -> None:
        """Changes the training batch in place, when its log-probs and advantages are known.

        Called: once for each training rollout, after the advantages and before the first optimizer step. Not under
        `--loss-type sft_loss`, nor where no token is trained.
        Arguments: `rollout_data` has an entry for each row under every key. Lists: tokens, total_lengths,
        response_lengths, loss_masks, rewards, raw_reward, truncated, sample_indices, rollout_ids. Tensors of R numbers,
        0.0 where the mask is 0: advantages, returns, log_probs (of the policy before its first step on this rollout), and
        where the run has them rollout_log_probs, ref_log_probs and values (of a critic, for the state before each token).
        Returns: nothing. Advantages and loss masks are taken from what it leaves, with a critic also the returns, which it
        learns; a mask may only lose tokens.
        Several plugins: all are called, in the user's order.

        Example:

        >>> from vime.api import hookimpl
        >>> @hookimpl
        ... def rollout_data_postprocess(rollout_data):
        ...     for mask, log_probs in zip(rollout_data["loss_masks"], rollout_data["rollout_log_probs"]):
        ...         mask[:] = [int(m and p > -20) for m, p in zip(mask, log_probs)]
        >>> data = {"loss_masks": [[1, 1]], "rollout_log_probs": [[-0.5, -30.0]]}
        >>> rollout_data_postprocess(data)
        >>> data["loss_masks"]
        [[1, 0]]
        """

    @hookspec
    def policy_loss(self, args: RunConfig, inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Replaces the loss, under `--loss-type custom_loss`.

        Called: once for each micro-batch.
        Arguments: `inputs` has, over the K trained tokens of the micro-batch, the tensors `log_probs` (with gradient),
        `old_log_probs`, `advantages` and `entropy`, `ref_log_probs` and `rollout_log_probs` or None, `rows` (the row of
        each token), and `reduce`, which turns K numbers into this micro-batch's share of the scalar that
        --loss-aggregation asks for.
        Returns: (loss, metrics): a scalar with gradient, and scalars by name, whose mean over the micro-batches is logged
        as `train/<name>`. The losses of a step's micro-batches are added up.
        Several plugins: one claims it; two are a conflict. A run with custom_loss and none is refused.

        Example:

        >>> import torch
        >>> from types import SimpleNamespace
        >>> from vime.api import hookimpl
        >>> @hookimpl
        ... def policy_loss(inputs):
        ...     loss = inputs.reduce(-inputs.advantages * inputs.log_probs)
        ...     return loss, {"mean_log_prob": inputs.log_probs.detach().mean()}
        >>> log_probs = torch.tensor([-1.0, -3.0], requires_grad=True)
        >>> policy_loss(SimpleNamespace(log_probs=log_probs, advantages=torch.tensor([1.0, 1.0]), reduce=torch.mean))[0].item()
        2.0
        """
        raise NotImplementedError

    @hookspec
    def importance_weights(
        self,
        args: RunConfig,
        pg_loss: Tensor,
        train_log_probs: list[Tensor],
        rollout_log_probs: list[Tensor],
        loss_masks: list[Tensor],
    ) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        """Corrects the policy loss for the difference between the engine's and the trainer's log-probs.

        Called: once for each micro-batch of a policy loss, under --use-tis.
        Arguments: `pg_loss` has a number for each of the K trained tokens; `train_log_probs`, `rollout_log_probs` and
        `loss_masks` (ones) are lists with a tensor for each row, over its trained tokens. A path function is called by
        keyword where its parameters have these names, and may also take `total_lengths` (of prompt and response) and
        `response_lengths` (of the trained tokens), a number for each row.
        Returns: (pg_loss, loss_masks, metrics): corrected loss, masks of the same shapes (0 takes a token's loss away), and
        K numbers by metric name, whose mean is logged as `train/<name>`.
        Several plugins: one claims it; two are a conflict. Without any, --tis-mode and --tis-level decide.

        Example:

        >>> import torch
        >>> from vime.api import hookimpl
        >>> @hookimpl
        ... def importance_weights(pg_loss, train_log_probs, rollout_log_probs, loss_masks):
        ...     ratio = torch.exp(torch.cat(train_log_probs) - torch.cat(rollout_log_probs))
        ...     return pg_loss * ratio.clamp(max=2.0), loss_masks, {"ratio": ratio}
        >>> loss, _, _ = importance_weights(torch.ones(2), [torch.tensor([0.0, 2.0])], [torch.zeros(2)], [torch.ones(2)])
        >>> loss.tolist()
        [1.0, 2.0]
        """
        raise NotImplementedError

    @hookspec
    def pg_loss_reducer(
        self, total_lengths: list[int], response_lengths: list[int], loss_masks: list[Tensor], calculate_per_token_loss: bool
    ) -> Callable[[Tensor], Tensor]:
        """Replaces how the policy loss of the tokens becomes one number.

        Called: once for each micro-batch of a policy loss; not under `--loss-type sft_loss` or custom_loss.
        Arguments: for each row, `total_lengths` (prompt and response), `response_lengths` (its trained tokens: masked ones
        are left out) and `loss_masks` (a tensor over these, 0 where --use-tis or importance_weights masked a token);
        `calculate_per_token_loss` is the flag of that name.
        Returns: a function of the K per-token losses, which returns a scalar: a sum over the rows of what each contributes.
        The scalars of a step's micro-batches are added up and divided by the number of its rollouts, or by that of its
        trained tokens under --loss-aggregation token.
        Several plugins: one claims it; two are a conflict. Without any, --loss-aggregation decides.

        Example:

        >>> import torch
        >>> from vime.api import hookimpl
        >>> @hookimpl
        ... def pg_loss_reducer(loss_masks):
        ...     mask = torch.cat(loss_masks)
        ...     return lambda per_token: (per_token * mask).sum() / 1000
        >>> pg_loss_reducer([torch.tensor([1.0, 0.0])])(torch.tensor([500.0, 7.0])).item()
        0.5
        """
        raise NotImplementedError
