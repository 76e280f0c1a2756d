"""Hook specs from the data source to the rewards. The examples are doctests; docs/hooks.md is generated from them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from vime.plugins.markers import hookspec

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.engine.base import Engine, SamplingParams
    from vime.outputs import RolloutFnEvalOutput, RolloutFnTrainOutput
    from vime.sample import Sample

    Number = float | int | bool
    Reward = Number | dict[str, Any]
    RolloutOutput = RolloutFnTrainOutput | RolloutFnEvalOutput


class RolloutSpec:
    """Hooks that make samples and score them."""

    @hookspec
    def make_data_source(self, args: RunConfig) -> Any:
        """Builds the data source: where prompts come from and where unfinished groups go back to.

        Called: once for each training run, before the engine and the trainer are built.
        Arguments: `args` is the configuration of the run, frozen.
        Returns: an object with `get_samples(n)` (a list of n groups, each of n_samples_per_prompt Samples; fewer only when
        the data has ended), `add_samples(groups)`, `save(rollout_id)`, `load(rollout_id)` and `__len__` (the number of
        prompts). Where it also has `state_dict()` and `load_state_dict(state)`, checkpoints hold that state, and save and
        load are not called.
        Several plugins: one claims it; two are a conflict. Without any, the built-in source reads --prompt-data.

        Example:

        >>> from vime.api import Sample, hookimpl
        >>> class Sums:
        ...     def __init__(self, args):
        ...         self.group_size, self.next, self.returned = args.n_samples_per_prompt, 0, []
        ...     def get_samples(self, n):
        ...         again, self.returned = self.returned[:n], self.returned[n:]
        ...         start, self.next = self.next, self.next + n - len(again)
        ...         return again + [self.group(i) for i in range(start, self.next)]
        ...     def group(self, i):
        ...         indices = range(i * self.group_size, (i + 1) * self.group_size)
        ...         return [Sample(group_index=i, index=index, prompt=f"{i}+1=", label=str(i + 1)) for index in indices]
        ...     def add_samples(self, groups):
        ...         self.returned += groups
        ...     def save(self, rollout_id): ...
        ...     def load(self, rollout_id): ...
        ...     def state_dict(self):
        ...         return {"next": self.next, "returned": [[sample.to_dict() for sample in group] for group in self.returned]}
        ...     def load_state_dict(self, state):
        ...         self.next = state["next"]
        ...         self.returned = [[Sample.from_dict(sample) for sample in group] for group in state["returned"]]
        ...     def __len__(self):
        ...         return 100
        >>> @hookimpl
        ... def make_data_source(args):
        ...     return Sums(args)
        >>> [[sample.prompt for sample in group] for group in make_data_source(args).get_samples(2)]
        [['0+1=', '0+1='], ['1+1=', '1+1=']]
        """
        raise NotImplementedError

    @hookspec
    def generate_rollout(
        self, args: RunConfig, rollout_id: int, data_source: Any, evaluation: bool, engine: Engine
    ) -> RolloutOutput | Awaitable[RolloutOutput]:
        """Replaces the whole rollout: from prompts to rewarded groups.

        Called: once for each training rollout and once for each evaluation; under `--loss-type sft_loss`, where an evaluation
        is a loss, as for training rollouts, of the held-out rows. A plain `def` runs in a thread of its own, an
        `async def` in the event loop that generates. The hooks from buffer_filter to dynamic_sampling_filter belong to the
        built-in rollout, and are called when this function calls that.
        Arguments: `rollout_id` counts rollouts from 0, for an evaluation those that are finished; `data_source` gives
        prompts (see make_data_source), None in `vime eval`; `evaluation` is True for an evaluation over
        `args.eval_datasets`; `engine` generates (see vime.api.Engine).
        Returns: for training a RolloutFnTrainOutput (or its bare list) with rollout_batch_size groups of
        n_samples_per_prompt rollouts; every sample with tokens, a reward and a final status. For evaluation a
        RolloutFnEvalOutput (or its bare dict): by dataset, "rewards", "truncated" and "samples", equally long. The
        `metrics` of either are logged with the built-in ones.
        Several plugins: one claims it; two are a conflict. Without any, the built-in rollout runs.

        Example:

        >>> from vime.api import ConfigError, RolloutFnTrainOutput, Status, hookimpl
        >>> @hookimpl
        ... async def generate_rollout(args, data_source, evaluation, engine):
        ...     if evaluation:
        ...         raise ConfigError("sums makes training rollouts only", hint="name --eval-function-path")
        ...     groups = data_source.get_samples(args.rollout_batch_size)
        ...     for sample in (sample for group in groups for sample in group):
        ...         sample.tokens = engine.tokenizer.encode(sample.prompt)
        ...         params = {"max_new_tokens": args.rollout_max_response_len, "seed": sample.index}
        ...         answer = await engine.generate(sample.tokens, params)
        ...         sample.append_response_tokens(tokens=answer.token_ids, log_probs=answer.log_probs, text=answer.text)
        ...         sample.status = Status.TRUNCATED if answer.finish_reason == "length" else Status.COMPLETED
        ...         sample.reward = float(answer.text == sample.label)
        ...     return RolloutFnTrainOutput(groups)
        >>> output = run(generate_rollout(args, data_source, False, engine))
        >>> [len(group) for group in output.samples]
        [2, 2]
        """
        raise NotImplementedError

    @hookspec
    def buffer_filter(self, args: RunConfig, rollout_id: int | None, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        """Chooses which groups of the buffer are used first.

        Called: each time that the built-in data source, or one derived from it, is asked for prompts and its buffer is not
        empty.
        Arguments: `buffer` holds the groups that came back unfinished or surplus, oldest first; `num_samples` is how many
        groups are wanted, in groups and not in samples; `rollout_id` is the rollout they are for, None when unknown.
        Returns: at most num_samples of the groups in `buffer`, whole and unchanged, none twice; new prompts make up for
        what is missing. vime takes them out of the buffer where the filter did not. A group that the filter takes out of
        `buffer` and does not return is thrown away, and counted in `rollout/buffer_discarded`.
        Several plugins: one claims it; two are a conflict. Without any, the oldest groups are taken.

        Example:

        >>> from vime.api import Sample, hookimpl
        >>> @hookimpl
        ... def buffer_filter(buffer, num_samples):
        ...     return sorted(buffer, key=lambda group: -group[0].response_length)[:num_samples]
        >>> started, new = [Sample(index=1, response_length=9)], [Sample(index=2)]
        >>> [group[0].index for group in buffer_filter([new, started], 1)]
        [1]
        """
        raise NotImplementedError

    @hookspec
    def custom_generate(
        self, args: RunConfig, sample: Sample, sampling_params: SamplingParams, evaluation: bool, engine: Engine
    ) -> Sample | list[Sample] | Awaitable[Sample | list[Sample]]:
        """Generates the answer to one prompt: with tools, over several turns, through an agent.

        Called: once for each sample of training and evaluation, many at a time in one event loop; an `async def` lets the
        others run while it waits. Again for a sample whose generation an engine failed (--generation-retries), or whose
        reward failed under `--on-reward-error drop`.
        Arguments: `sample` is PENDING, or ABORTED with the tokens it has when a partial rollout is continued;
        `sampling_params` is a dict of this call's own, for `engine.generate`; `evaluation` is True for evaluation prompts;
        `engine` generates.
        Returns: the sample with tokens, response and a status: COMPLETED or TRUNCATED, or ABORTED where the engine
        stopped it; or a list of Samples for a rollout that has several (sub-agents), which share one `rollout_id` (set
        for them where they have none). Response tokens are added by `append_response_tokens` only. A reward that is set
        here is kept.
        Several plugins: one claims it; two are a conflict. A sample's `generate_function_path` and that of an evaluation
        dataset go first.

        Example:

        >>> from vime.api import Sample, Status, hookimpl
        >>> from vime.testing import FakeEngine
        >>> @hookimpl
        ... async def custom_generate(sample, sampling_params, engine):
        ...     sample.tokens = engine.tokenizer.encode(sample.prompt)
        ...     thought = await engine.generate(sample.tokens, sampling_params)
        ...     sample.append_response_tokens(tokens=thought.token_ids, log_probs=thought.log_probs, text=thought.text)
        ...     ends = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}
        ...     sample.status = ends[thought.finish_reason]
        ...     if sample.status is Status.COMPLETED:
        ...         tool = " [4]"
        ...         sample.append_response_tokens(tokens=engine.tokenizer.encode(tool), trainable=False, text=tool)
        ...     return sample
        >>> sample = run(custom_generate(Sample(prompt="2+2="), {"max_new_tokens": 9}, FakeEngine(policy={"2+2=": "2+2"})))
        >>> sample.response, sample.loss_mask
        ('2+2 [4]', [1, 1, 1, 1, 0, 0, 0, 0])
        """
        raise NotImplementedError

    @hookspec
    def rollout_sample_hook(
        self, args: RunConfig, sample: Sample, rollout_id: int, evaluation: bool
    ) -> Sample | Awaitable[Sample | None] | None:
        """Looks at a sample, or changes it, between its generation and its reward.

        Called: once for each generated sample of training and evaluation, on the event loop; again where it is generated
        again. Not for aborted and failed ones.
        Arguments: `sample` is generated, and not yet scored unless custom_generate set its reward; `rollout_id` is the
        rollout it belongs to; `evaluation` is True for evaluation samples.
        Returns: None to go on with the sample as it is now, or another Sample to go on with.
        Several plugins: all are called, in the user's order; the path flag may be repeated.

        Example:

        >>> from vime.api import Sample, hookimpl
        >>> @hookimpl
        ... def rollout_sample_hook(sample):
        ...     sample.metadata["thinks"] = "<think>" in sample.response
        >>> sample = Sample(response="<think>2</think>2")
        >>> rollout_sample_hook(sample)
        >>> sample.metadata
        {'thinks': True}
        """
        raise NotImplementedError

    @hookspec
    def custom_rm(self, args: RunConfig, sample: Sample, samples: list[Sample]) -> Reward | list[Reward] | Awaitable[Reward | list[Reward]]:
        """The reward of a sample, or of a whole group.

        Called: once for each sample of training and evaluation; under --group-rm once for each complete group, with
        `samples`, if the function takes that. Not for samples that are aborted, failed, or have a reward already.
        Synchronous functions run in worker processes (--reward-isolation), `async def` on the event loop.
        Arguments: `sample` is generated, with its `prompt`, `response`, `label` and `metadata` (the only field that may be
        written to), and None in a call with `samples`; `samples` is the group, and None for a single sample.
        Returns: a finite number or a bool, or a dict of them with the same keys for every sample (--reward-key names the
        one to train on, else it is `total`). With `samples`: a list of these, one for each sample, in order.
        Several plugins: the rm_type of a sample chooses by plugin name (`rm_type` in a row's metadata, or --rm-type), or
        sums several: math+format. Without any rm_type two are a conflict. A sample's `custom_rm_path` and that of an
        evaluation dataset go first.

        Example:

        >>> from vime.api import Sample, hookimpl
        >>> @hookimpl
        ... def custom_rm(sample):
        ...     if sample.label is None:
        ...         raise ValueError("the row has no label: name its key with --label-key")
        ...     return float(sample.response.strip() == sample.label)
        >>> custom_rm(Sample(response=" 4", label="4"))
        1.0
        """
        raise NotImplementedError

    @hookspec
    def shape_reward(self, args: RunConfig, sample: Sample) -> Number | Awaitable[Number | None] | None:
        """Adds to the reward of a sample: a penalty, a bonus.

        Called: once for each scored sample of training and evaluation, after its reward, on the event loop.
        Arguments: `sample` has its reward, with what the plugins before this one have added.
        Returns: a finite number that is added to the reward (to its --reward-key for dict rewards), or None for nothing.
        Several plugins: all are called, in the user's order, and their numbers add up.

        Example:

        >>> from vime.api import Sample, hookimpl
        >>> @hookimpl
        ... def shape_reward(sample):
        ...     return -0.5 if sample.status is Sample.Status.TRUNCATED else None
        >>> shape_reward(Sample(reward=1.0, status=Sample.Status.TRUNCATED))
        -0.5
        """
        raise NotImplementedError
