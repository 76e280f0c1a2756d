"""Functions inside training with one mistake each, and sound ones."""

from __future__ import annotations

from zoo.others import quiet, refused

# Sound


def mask_unlikely(args, rollout_id, rollout_data):
    for mask, log_probs in zip(rollout_data["loss_masks"], rollout_data["rollout_log_probs"], strict=True):
        mask[:] = [int(flag and value > -20) for flag, value in zip(mask, log_probs, strict=True)]


def reward_everywhere(args, rollout_data):
    rows = zip(rollout_data["rewards"], rollout_data["response_lengths"], strict=True)
    rollout_data["advantages"] = rollout_data["returns"] = [[reward] * length for reward, length in rows]


def reinforce(args, inputs):
    return inputs.reduce(-inputs.advantages * inputs.log_probs), {"mean_log_prob": inputs.log_probs.detach().mean()}


def truncated_ratio(args, pg_loss, train_log_probs, rollout_log_probs, loss_masks):
    ratios = [(train - rollout).exp().clamp(max=2.0) for train, rollout in zip(train_log_probs, rollout_log_probs, strict=True)]
    ratio = ratios[0].new_tensor([value for row in ratios for value in row.tolist()])
    return pg_loss * ratio, loss_masks, {"ratio": ratio}


def by_constant(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
    return lambda per_token: per_token.sum() / 1000


SOUND = (
    (mask_unlikely, "rollout_data_postprocess"),
    (reward_everywhere, "compute_advantages"),
    (reinforce, "policy_loss"),
    (truncated_ratio, "importance_weights"),
    (by_constant, "pg_loss_reducer"),
)


# Wrong


def loses_a_row(args, rollout_id, rollout_data):
    rollout_data["advantages"] = rollout_data["advantages"][:-1]


def unmasks(args, rollout_id, rollout_data):
    rollout_data["loss_masks"] = [[1] * length for length in rollout_data["response_lengths"]]


def cuts_log_probs(args, rollout_id, rollout_data):
    rollout_data["rollout_log_probs"] = [values.clamp(min=-0.2) for values in rollout_data["rollout_log_probs"]]


def one_number_each(args, rollout_data):
    rollout_data["advantages"] = rollout_data["returns"] = [[reward] for reward in rollout_data["rewards"]]


def no_returns(args, rollout_data):
    rows = zip(rollout_data["rewards"], rollout_data["response_lengths"], strict=True)
    rollout_data["advantages"] = [[reward] * length for reward, length in rows]


def changes_tokens(args, rollout_data):
    rows = zip(rollout_data["rewards"], rollout_data["response_lengths"], strict=True)
    rollout_data["advantages"] = rollout_data["returns"] = [[reward] * length for reward, length in rows]
    for tokens in rollout_data["tokens"]:
        tokens.pop()


def loss_alone(args, inputs):
    return inputs.reduce(-inputs.advantages * inputs.log_probs)


def loss_in_place(args, inputs):
    loss = inputs.reduce(-inputs.advantages.sub_(1.0) * inputs.log_probs)
    return loss, {}


def loss_detached(args, inputs):
    return inputs.reduce(-inputs.advantages * inputs.log_probs.detach()), {}


def loss_of_logs(args, inputs):
    ratio = (inputs.log_probs - inputs.old_log_probs).exp()
    return inputs.reduce(-inputs.advantages * (ratio - 1.0).log()), {}


def weights_of_one_row(args, pg_loss, train_log_probs, rollout_log_probs, loss_masks):
    ratio = (train_log_probs[0] - rollout_log_probs[0]).exp().mean()
    return pg_loss * ratio, loss_masks, {"ratio": ratio}


def weights_of_nothing(args, pg_loss, train_log_probs, rollout_log_probs, loss_masks):
    return pg_loss / 0.0, loss_masks, {}


def reduced_already(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
    return sum(response_lengths)


def mean_of_micro_batch(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
    return lambda per_token: per_token.mean()


def mean_of_masked(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
    count = sum((mask == 0).sum() for mask in loss_masks)
    return lambda per_token: per_token.sum() / count


def reduced_to_a_number(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
    return lambda per_token: per_token.detach().mean()


WRONG = (
    refused(
        "a row is lost",
        loses_a_row,
        "rollout-data-result",
        "rollout_data_postprocess: advantages has 7 entries, expected a list of 8, one per sample",
        hook="rollout_data_postprocess",
    ),
    refused(
        "masked tokens set again",
        unmasks,
        "rollout-data-result",
        "rollout_data_postprocess set the loss mask of a token that was masked, in sample 5",
        hook="rollout_data_postprocess",
    ),
    quiet(
        "log-probs changed",
        cuts_log_probs,
        "rollout-data-kept",
        "it changed rollout_data['rollout_log_probs']",
        hook="rollout_data_postprocess",
    ),
    refused(
        "one advantage for a whole response",
        one_number_each,
        "advantages-result",
        "compute_advantages: advantages of sample 0 has 1 entries, expected 3",
        hook="compute_advantages",
    ),
    quiet("no returns", no_returns, "advantages-result", "compute_advantages set no rollout_data['returns']", hook="compute_advantages"),
    quiet("tokens changed", changes_tokens, "advantages-kept", "it changed rollout_data['tokens']", hook="compute_advantages"),
    refused(
        "a loss without metrics", loss_alone, "loss-result", "policy_loss returned Tensor; expected a loss and a dict", hook="policy_loss"
    ),
    quiet("an input changed in place", loss_in_place, "loss-result", "it changed its input advantages in place", hook="policy_loss"),
    refused(
        "a loss without a gradient",
        loss_detached,
        "loss-result",
        "policy_loss: loss has no gradient, so there is nothing to train on",
        hook="policy_loss",
    ),
    quiet(
        "the logarithm of what may be negative",
        loss_of_logs,
        "loss-finite",
        "the loss is nan where log-probs differ by 0 from the old ones",
        hook="policy_loss",
    ),
    refused(
        "a metric of another shape",
        weights_of_one_row,
        "importance-weights-result",
        "importance_weights: ratio has shape (), expected a tensor of shape (40,)",
        hook="importance_weights",
    ),
    quiet(
        "a division by zero",
        weights_of_nothing,
        "importance-weights-finite",
        "the loss is nan where log-probs differ by 0 from the old ones",
        hook="importance_weights",
    ),
    refused(
        "a number instead of a function",
        reduced_already,
        "reducer-result",
        "pg_loss_reducer returned int; expected a function",
        hook="pg_loss_reducer",
    ),
    refused(
        "a reduction without a gradient",
        reduced_to_a_number,
        "reducer-result",
        "pg_loss_reducer: the reduced loss has no gradient, so there is nothing to train on",
        hook="pg_loss_reducer",
    ),
    quiet(
        "a mean over the tokens that are masked",
        mean_of_masked,
        "reducer-finite",
        "the loss is inf where log-probs differ by 0 from the old ones",
        hook="pg_loss_reducer",
    ),
    quiet(
        "a mean over the micro-batch",
        mean_of_micro_batch,
        "reducer-adds-up",
        "the losses of two micro-batches do not add up to that of both: 0.6381 and -0.174, together 0.1914",
        hook="pg_loss_reducer",
    ),
)
