"""Data sources, log functions, train data and loss functions with one mistake each, and sound ones."""

from __future__ import annotations

import random
from typing import Any

from vime.api import Status
from zoo.base import Wrong
from zoo.list_source import ListSource


def log_counts(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
    rollout_extra_metrics["empty_answers"] = sum(not sample.response for sample in samples)


def log_best(rollout_id, args, data, extra_metrics):
    for name, results in data.items():
        if results["rewards"]:
            extra_metrics[f"{name}/best"] = max(results["rewards"])
    return False


def rows_of(args, samples):
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [sample.reward for sample in samples],
        "raw_reward": [sample.reward for sample in samples],
        "truncated": [int(sample.status is Status.TRUNCATED) for sample in samples],
        "sample_indices": [sample.index for sample in samples],
        "loss_masks": [
            [0] * sample.response_length if sample.remove_sample else sample.loss_mask or [1] * sample.response_length for sample in samples
        ],
    }


SOUND = (
    ("zoo.list_source:ListSource", "make_data_source"),
    (log_counts, "log_rollout_data"),
    (log_best, "log_eval_rollout_data"),
    (rows_of, "convert_samples_to_train_data"),
)


# Data sources


def forgets_to_return(args):
    ListSource(args)


class FlatSource(ListSource):
    def get_samples(self, num_samples):
        return [sample for group in super().get_samples(num_samples) for sample in group][:num_samples]


class OneSampleEach(ListSource):
    def group(self, number):
        return super().group(number)[:1]


class AtLeastOne(ListSource):
    def get_samples(self, num_samples):
        return super().get_samples(max(1, num_samples))


class IndexOfTheRow(ListSource):
    def group(self, number):
        return super().group(number % len(self.rows))


class Iterates(ListSource):
    def __init__(self, args):
        super().__init__(args)
        self.numbers = iter(range(len(self.rows)))

    def get_samples(self, num_samples):
        return [self.group(next(self.numbers)) for _ in range(num_samples)]

    def load(self, rollout_id=None):
        super().load(rollout_id)
        self.numbers = iter(range(3, len(self.rows)))

    def add_samples(self, samples):
        raise NotImplementedError("there is no buffer")


class ForgetsWhatComesBack(ListSource):
    def add_samples(self, samples):
        pass


class SharedMetadata(ListSource):
    def group(self, number):
        group, metadata = super().group(number), {"level": number % 3}
        for sample in group:
            sample.metadata = metadata
        return group


class Shuffles(ListSource):
    def __init__(self, args):
        super().__init__(args)
        self.rows = [(f"{i}+1=", str(i + 1)) for i in range(40)]
        random.shuffle(self.rows)


class StartsOver(ListSource):
    def load(self, rollout_id=None):
        pass


class RowsInItsState(ListSource):
    """Its state is not JSON."""

    def state_dict(self):
        return {"next_group": self.next_group, "returned": self.returned, "seen": {1, 2}}

    def load_state_dict(self, state):
        self.next_group = state["next_group"]


# Logs


def returns_metrics(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
    return {**rollout_extra_metrics, "empty_answers": sum(not sample.response for sample in samples)}


def logs_a_list(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
    rollout_extra_metrics["rewards"] = [sample.reward for sample in samples]


def only_its_own(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
    rollout_extra_metrics.clear()
    rollout_extra_metrics["empty_answers"] = 0


def shortens(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
    for sample in samples:
        sample.response = sample.response[:3]


def best_of_none(rollout_id, args, data, extra_metrics):
    for name, results in data.items():
        extra_metrics[f"{name}/best"] = max(results["rewards"])


def summary(rollout_id, args, data, extra_metrics):
    return {name: len(results["rewards"]) for name, results in data.items()}


def examples(rollout_id, args, data, extra_metrics):
    extra_metrics["example"] = data["held-out"]["samples"][0].response


def sorts(rollout_id, args, data, extra_metrics):
    for results in data.values():
        for sample in results["samples"]:
            sample.reward = round(sample.reward)
            sample.label = None


# Train data


def no_truncated(args, samples):
    rows = rows_of(args, samples)
    del rows["truncated"]
    return rows


def mask_over_all_tokens(args, samples):
    return {**rows_of(args, samples), "loss_masks": [[1] * len(sample.tokens) for sample in samples]}


def sorted_by_length(args, samples):
    rows = rows_of(args, samples)
    return {**rows, "tokens": sorted(rows["tokens"], key=len), "raw_reward": sorted(rows["raw_reward"])}


def forgets_removed(args, samples):
    return {**rows_of(args, samples), "loss_masks": [sample.loss_mask or [1] * sample.response_length for sample in samples]}


def pads_in_place(args, samples):
    rows = rows_of(args, samples)
    for sample in samples:
        sample.metadata["packed"] = True
    return rows


def refused(name: str, target: Any, check: str, message: str, hook: str) -> Wrong:
    """The run refuses it with the same message."""
    whole = f"path function {target.__module__}:{target.__name__}: {message}"
    return Wrong(name, target, check, whole, core=whole, hook=hook)


def quiet(name: str, target: Any, check: str, message: str, hook: str, core: str | None = None, also: tuple[str, ...] = ()) -> Wrong:
    """The run goes on with it, or does not name the function."""
    return Wrong(name, target, check, message, core=core, hook=hook, also=also)


WRONG = (
    refused(
        "nothing is returned",
        forgets_to_return,
        "data-source-methods",
        "make_data_source returned None without get_samples, add_samples, save, load, __len__",
        hook="make_data_source",
    ),
    quiet(
        "samples instead of groups",
        "zoo.others:FlatSource",
        "data-source-groups",
        "get_samples returned a Sample as a group; expected a list of samples",
        hook="make_data_source",
    ),
    quiet(
        "one sample instead of a group",
        "zoo.others:OneSampleEach",
        "data-source-groups",
        "a group has 1 rollouts; expected 2 (n_samples_per_prompt)",
        hook="make_data_source",
    ),
    quiet(
        "a group when none was asked for",
        "zoo.others:AtLeastOne",
        "data-source-nothing",
        "get_samples(0) returned 1 groups",
        hook="make_data_source",
    ),
    quiet(
        "indices that come again in the next epoch",
        "zoo.others:IndexOfTheRow",
        "data-source-indices",
        "two groups have the group_index 0",
        hook="make_data_source",
    ),
    quiet(
        "an iterator that ends",
        "zoo.others:Iterates",
        "data-source-end",
        "get_samples raised StopIteration after its 6 prompts",
        hook="make_data_source",
    ),
    quiet(
        "groups that come back are dropped",
        "zoo.others:ForgetsWhatComesBack",
        "data-source-add-samples",
        "the group 1 was given back with add_samples, and never came again",
        hook="make_data_source",
    ),
    quiet(
        "one metadata dict for a group",
        "zoo.others:SharedMetadata",
        "data-source-independent",
        "samples 0 and 1 share one metadata object",
        hook="make_data_source",
    ),
    quiet(
        "an unseeded shuffle",
        "zoo.others:Shuffles",
        "data-source-deterministic",
        "two data sources over the same data give other prompts",
        hook="make_data_source",
        also=("data-source-resume",),
    ),
    quiet(
        "a resume that starts over",
        "zoo.others:StartsOver",
        "data-source-resume",
        "after a resume the next (index, prompt) is (0, '0+1='); without one it is (6, '3+1=')",
        hook="make_data_source",
    ),
    quiet(
        "a state that is not JSON",
        "zoo.others:RowsInItsState",
        "data-source-resume",
        "state_dict() is not plain JSON data: Object of type set is not JSON serializable",
        hook="make_data_source",
    ),
    refused(
        "metrics returned instead of added",
        returns_metrics,
        "log-rollout-result",
        "log_rollout_data returned a dict; expected True (to skip the built-in log), False or None",
        hook="log_rollout_data",
    ),
    refused(
        "a list as a metric",
        logs_a_list,
        "log-rollout-metrics",
        "log_rollout_data has the metric 'rewards' = list [1.0, 0.0, 1.0, 0.0]; expected a name and a finite number",
        hook="log_rollout_data",
    ),
    refused(
        "the other metrics thrown away",
        only_its_own,
        "log-rollout-metrics",
        "log_rollout_data removed the metric 'raw_reward', which is not its own",
        hook="log_rollout_data",
    ),
    quiet(
        "responses shortened for the log",
        shortens,
        "log-rollout-pure",
        "path function zoo.others:shortens: log_rollout_data changed what it was shown: sample 3 (group 1): response 'cut off' -> 'cut'",
        hook="log_rollout_data",
    ),
    refused(
        "a summary returned to the log",
        summary,
        "log-eval-result",
        "log_eval_rollout_data returned a dict; expected True (to skip the built-in log), False or None",
        hook="log_eval_rollout_data",
    ),
    quiet(
        "an empty dataset is not thought of",
        best_of_none,
        "log-eval-empty",
        f"raised ValueError: max() arg is an empty sequence (others.py:{best_of_none.__code__.co_firstlineno + 2})",
        hook="log_eval_rollout_data",
    ),
    refused(
        "a text as a metric",
        examples,
        "log-eval-metrics",
        "log_eval_rollout_data has the metric 'example' = str '0'; expected a name and a finite number",
        hook="log_eval_rollout_data",
    ),
    quiet(
        "samples changed for the log",
        sorts,
        "log-eval-pure",
        "path function zoo.others:sorts: log_eval_rollout_data changed what it was shown: "
        "sample 0 (group 0): label '2' -> None (and 3 more changes)",
        hook="log_eval_rollout_data",
    ),
    refused(
        "a missing key",
        no_truncated,
        "train-data-result",
        "convert_samples_to_train_data left out truncated",
        hook="convert_samples_to_train_data",
    ),
    quiet(
        "masks over prompt and response",
        mask_over_all_tokens,
        "train-data-result",
        "path function zoo.others:mask_over_all_tokens: convert_samples_to_train_data: "
        "sample 0: loss_mask has 6 entries for a response of 2 tokens",
        core="sample 0: loss_mask has 6 entries for a response of 2 tokens",
        hook="convert_samples_to_train_data",
    ),
    quiet(
        "lists in orders of their own",
        sorted_by_length,
        "train-data-order",
        "row 0 has the sample index 0 and the raw_reward -1; sample 0 has 1.0",
        hook="convert_samples_to_train_data",
    ),
    quiet(
        "removed samples are trained",
        forgets_removed,
        "train-data-removed",
        "sample 1 is removed, and its row is trained",
        hook="convert_samples_to_train_data",
    ),
    quiet(
        "samples changed on the way",
        pads_in_place,
        "train-data-pure",
        "path function zoo.others:pads_in_place: convert_samples_to_train_data changed what it was shown: "
        "sample 0 (group 0): metadata {} -> {'packed': True} (and 11 more changes)",
        hook="convert_samples_to_train_data",
    ),
)
