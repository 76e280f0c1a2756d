"""Functions as users of slime and upstream vime have them: their imports, their parameter names, nothing of this project's.

The task is an answer of digits: a reward for each of them, so that answers of one prompt differ.
"""

import copy
import random

from vime.api import current_engine
from vime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from vime.rollout.data_source import RolloutDataSourceWithBuffer
from vime.rollout.filter_hub.base_types import DynamicFilterOutput
from vime.rollout.vllm_rollout import generate_rollout as built_in_rollout
from vime.utils.types import Sample


def _score(sample):
    return sum(character.isdigit() for character in sample.response) / max(1, sample.response_length)


# --custom-rm-path


async def reward_func(args, sample, **kwargs):
    """One sample at a time."""
    if not isinstance(sample, Sample):
        raise TypeError("Sample must be an instance of Sample class.")
    return _score(sample)


async def batched_reward_func(args, samples, **kwargs):
    """A whole group, under --group-rm: what a sample has above the worst of its group."""
    scores = [_score(sample) for sample in samples]
    return [score - min(scores) for score in scores]


# --dynamic-sampling-filter-path


def not_all_equal(args, samples: list[Sample], **kwargs):
    """A verdict as a bare bool."""
    rewards = [sample.get_reward_value(args) for sample in samples]
    return max(rewards) - min(rewards) > 1e-6


def drop_small_sums(args, samples: list[Sample], **kwargs):
    """A verdict with its reason: sums below three are too easy."""
    keep = int(samples[0].label) >= 3
    return DynamicFilterOutput(keep=keep, reason=None if keep else f"sum_{samples[0].label}")


# --buffer-filter-path


def pop_newest(args, rollout_id, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
    """The groups that came back last, taken out of the buffer as upstream's own filter does."""
    number = min(len(buffer), num_samples)
    groups = buffer[len(buffer) - number :]
    del buffer[len(buffer) - number :]
    for group in groups:
        for sample in group:
            sample.metadata["popped"] = True
    return groups


# --rollout-sample-filter-path


def remove_worst(args, data):
    """The worst answer to each prompt is not trained on."""
    for group in data:
        worst = min(group, key=lambda sample: sample.get_reward_value(args))
        worst.remove_sample = True


# --rollout-all-samples-process-path


def count_all_samples(args, all_samples, data_source):
    """Statistics over kept and dropped groups alike, kept where the data source saves them."""
    seen = data_source.metadata.setdefault("seen", {"groups": 0, "popped": 0})
    seen["groups"] += len(all_samples)
    seen["popped"] += sum(sample.metadata.get("popped", False) for group in all_samples for sample in group)


# --custom-generate-function-path


async def generate(args, sample: Sample, sampling_params) -> Sample:
    """One turn, a note from a tool, and a second turn. The engine takes the place of the router's address."""
    engine = current_engine()
    if not sample.tokens:
        sample.tokens = engine.tokenizer.encode(sample.prompt)
    params = {**sampling_params, "max_new_tokens": sampling_params["max_new_tokens"] // 2}
    for turn in range(2):
        output = await engine.generate(sample.tokens, params)
        sample.append_response_tokens(
            args,
            tokens=output.token_ids,
            log_probs=output.log_probs,
            text=output.text,
            meta_info={"weight_version": output.weight_version},
        )
        if turn == 0:
            note = engine.tokenizer.encode(" ok ")
            sample.append_response_tokens(args, tokens=note, trainable=False, text=" ok ")
    sample.status = {"stop": Sample.Status.COMPLETED, "length": Sample.Status.TRUNCATED}.get(output.finish_reason, Sample.Status.ABORTED)
    sample.metadata["turns"] = 2
    return sample


async def generate_segments(args, sample: Sample, sampling_params, evaluation=False) -> list[Sample]:
    """A rollout in two segments, as an agent makes them: they share rollout_id and reward."""
    engine = current_engine()
    segments = []
    for _ in range(2):
        segment = copy.deepcopy(sample)
        segment.rollout_id = sample.index
        segment.tokens = engine.tokenizer.encode(sample.prompt)
        output = await engine.generate(segment.tokens, sampling_params)
        segment.append_response_tokens(args, tokens=output.token_ids, log_probs=output.log_probs, text=output.text)
        segment.reward, segment.status = 0.5, Sample.Status.COMPLETED
        segments.append(segment)
    return segments


# --custom-reward-post-process-path


def center_by_prompt(args, samples: list[Sample], **kwargs):
    """Rewards minus the mean of their prompt, with the samples of a prompt found by its text."""
    raw_rewards = [sample.get_reward_value(args) for sample in samples]
    by_prompt = {}
    for sample, reward in zip(samples, raw_rewards, strict=True):
        by_prompt.setdefault(str(sample.prompt), []).append(reward)
    means = {prompt: sum(rewards) / len(rewards) for prompt, rewards in by_prompt.items()}
    return raw_rewards, [reward - means[str(sample.prompt)] for sample, reward in zip(samples, raw_rewards, strict=True)]


# --rollout-function-path


def generate_rollout(args, rollout_id, data_buffer, evaluation=False):
    """A rollout of its own over the data source, with answers from a table instead of a model."""
    if evaluation:
        return eval_rollout(args, rollout_id)
    groups = data_buffer.get_samples(args.rollout_batch_size)
    for group in groups:
        for sample in group:
            sample.tokens = [1, 2, 3, 4]
            sample.response, sample.response_length, sample.loss_mask = "12", 2, [1, 1]
            sample.reward, sample.status = float(sample.index % 2), Sample.Status.COMPLETED
    return RolloutFnTrainOutput(samples=groups, metrics={"table": float(rollout_id)})


def eval_rollout(args, rollout_id):
    """The evaluation branch."""
    samples = [Sample(index=i, prompt="1+1=", response="2", response_length=1, tokens=[1, 2], reward=1.0) for i in range(3)]
    return RolloutFnEvalOutput(data={"table": {"rewards": [1.0, 0.0, 1.0], "truncated": [False] * 3, "samples": samples}})


def generate_rollout_with_metrics(args, rollout_id, data_buffer, evaluation=False):
    """The built-in rollout, and a number of its own."""
    output = built_in_rollout(args, rollout_id, data_buffer, evaluation=evaluation)
    if isinstance(output, RolloutFnEvalOutput):
        output.metrics = {"wrapped": 1.0}
    else:
        turns = [sample.metadata.get("turns", 1) for group in output.samples for sample in group]
        output.metrics = {**(output.metrics or {}), "wrapped_turns": sum(turns) / len(turns)}
    return output


# --custom-rollout-log-function-path, --custom-eval-rollout-log-function-path


def log_rollout_data(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
    """One more number, beside the default log."""
    rollout_extra_metrics["labels"] = float(len({sample.label for sample in samples}))
    return False


def log_eval_rollout_data(rollout_id, args, data, extra_metrics):
    """The same for evaluations."""
    for name, results in data.items():
        extra_metrics[f"{name}/best"] = max(results["rewards"])
    return False


# --data-source-path


class ShuffledDataSource(RolloutDataSourceWithBuffer):
    """The built-in source with its new groups in another order, and a mark on each sample."""

    def __init__(self, args):
        super().__init__(args)
        self.random = random.Random(args.rollout_seed)

    def get_samples(self, num_samples):
        groups = super().get_samples(num_samples)
        self.random.shuffle(groups)
        for group in groups:
            for sample in group:
                sample.metadata["source"] = "shuffled"
        return groups
