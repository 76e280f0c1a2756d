"""Wrong functions at every hook of a rollout, called by the real runner: each is named with what was expected, what came, and a way out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from vime.api import DynamicFilterOutput, RolloutFnEvalOutput, RolloutFnTrainOutput, Sample, Status
from vime.errors import ContractError
from vime.rollout.hook_guards import check_verdict

NUM_GPUS = 0

Run = Callable[..., Any]


def answer(sample: Sample) -> Sample:
    """A valid response of one token."""
    sample.tokens = [1]
    sample.append_response_tokens(tokens=[2], log_probs=[-0.5], text="x")
    sample.status = Status.COMPLETED
    return sample


def answered(change: Callable[[Sample], Any]) -> Any:
    """A custom_generate that answers, and returns what `change(sample)` makes of sample 2 (of group 1)."""

    async def custom_generate(sample: Sample) -> Any:
        answer(sample)
        return change(sample) if sample.index == 2 else sample

    return custom_generate


def with_field(name: str, value: Any) -> Callable[[Sample], Sample]:
    def change(sample: Sample) -> Sample:
        setattr(sample, name, value)
        return sample

    return change


def several(*rollout_ids: Any) -> Callable[[Sample], list[Sample]]:
    def change(sample: Sample) -> list[Sample]:
        siblings = [copy.deepcopy(sample) for _ in rollout_ids]
        for sibling, rollout_id in zip(siblings, rollout_ids, strict=True):
            sibling.rollout_id = rollout_id
        return siblings

    return change


def in_all(change: Callable[[list[Any]], Any]) -> Any:
    """A hook over groups that does something to them and returns what `change(groups)` returns."""

    def hook(samples: list[Any]) -> Any:
        return change(samples)

    return hook


def over_everything(change: Callable[[list[Any]], Any]) -> Any:
    def process_all_samples(all_samples: list[Any]) -> Any:
        return change(all_samples)

    return process_all_samples


def returning(value: Any) -> Any:
    def hook() -> Any:
        return value

    return hook


def log(change: Callable[[Any], Any]) -> Any:
    def log_rollout_data(rollout_extra_metrics: dict[str, Any]) -> Any:
        return change(rollout_extra_metrics)

    return log_rollout_data


def made(change: Callable[[list[list[Sample]]], Any]) -> Any:
    """A rollout function that answers and scores everything, and returns what `change(groups)` makes of it."""

    def generate_rollout(args: Any, data_source: Any) -> Any:
        groups = data_source.get_samples(args.rollout_batch_size)
        for sample in (sample for group in groups for sample in group):
            answer(sample).reward = 1.0
        return change(groups)

    return generate_rollout


class Source:
    """A data source of the user's own; `change(groups)` is what get_samples returns."""

    def __init__(self, change: Callable[[list[list[Sample]]], Any] = lambda groups: groups) -> None:
        self.change, self.next = change, 0

    def get_samples(self, num_samples: int) -> Any:
        first, self.next = self.next, self.next + num_samples
        groups = [[Sample(group_index=g, index=2 * g + i, prompt="p") for i in range(2)] for g in range(first, self.next)]
        return self.change(groups)

    def add_samples(self, samples: Any) -> None: ...

    def save(self, rollout_id: int) -> None: ...

    def load(self, rollout_id: int | None = None) -> None: ...

    def __len__(self) -> int:
        return 8


class OneMethod:
    def get_samples(self, num_samples: int) -> Any:
        return []


def source(change: Callable[[list[list[Sample]]], Any]) -> Any:
    return returning(Source(change))


class Later:
    """What an `async def` gives to a caller that does not await it."""

    def __await__(self) -> Any:
        return iter(())


def set_item(values: list[Any], position: int, value: Any) -> None:
    values[position] = value


def removing(value: Any) -> Any:
    def change(groups: list[list[Sample]]) -> None:
        groups[1][0].remove_sample = value

    return change


def verdict(value: Any) -> Any:
    def dynamic_sampling_filter(samples: list[Sample]) -> Any:
        return value if samples[0].group_index == 1 else True

    return dynamic_sampling_filter


@dataclass(frozen=True)
class Wrong:
    hook: str
    function: Any
    message: str
    hint: str
    evaluation: bool = False


one_sample = Sample(tokens=[1, 2], response_length=1, reward=1.0, status=Status.COMPLETED)

ZOO = {
    "generated None": Wrong(
        "custom_generate", answered(lambda s: None), "returned None for sample 2 (group 1); expected a Sample", "return"
    ),
    "generated text": Wrong("custom_generate", answered(lambda s: "4"), "returned str for sample 2 (group 1)", "append_response_tokens"),
    "generated nothing": Wrong("custom_generate", answered(lambda s: []), "returned an empty list for sample 2 (group 1)", "return"),
    "generated text in a list": Wrong(
        "custom_generate", answered(lambda s: [s, "4"]), "returned a list with str in it for sample 2", "return"
    ),
    "generated another group": Wrong(
        "custom_generate", answered(with_field("group_index", 0)), "returned a sample of group 0 for sample 2", "leave group_index"
    ),
    "generated another index": Wrong(
        "custom_generate", answered(with_field("index", 7)), "returned sample 7 for sample 2", "leave its index"
    ),
    "generated one object twice": Wrong(
        "custom_generate", answered(lambda s: [s, s]), "returned one Sample object several times", "deepcopy"
    ),
    "generated siblings of two rollouts": Wrong(
        "custom_generate", answered(several(5, None)), "the rollout_ids 5, None for sample 2 (group 1); expected one", "leave it None"
    ),
    "generated one rollout of two": Wrong(
        "custom_generate", lambda sample: with_field("rollout_id", 9)(answer(sample)), "2 rollouts became 1", "leave rollout_id None"
    ),
    "generated and left pending": Wrong(
        "custom_generate", answered(with_field("status", Status.PENDING)), "left sample 2 with status pending", "set sample.status"
    ),
    "generated with a status of text": Wrong(
        "custom_generate", answered(with_field("status", "completed")), "left sample 2 with status 'completed'", "Status.COMPLETED"
    ),
    "generated without tokens": Wrong(
        "custom_generate", answered(with_field("tokens", [])), "sample 2 (group 1) has 0 tokens and response_length 1", "append_response"
    ),
    "generated with a short mask": Wrong(
        "custom_generate",
        answered(with_field("loss_mask", [])),
        "loss_mask of sample 2 (group 1) has 0 entries for a response of 1",
        "aligned",
    ),
    "generated with tokens of another type": Wrong(
        "custom_generate", answered(with_field("tokens", (1, 2))), "tokens of sample 2 (group 1) is a tuple; expected a list", "to a list"
    ),
    "looked at and gave another": Wrong(
        "rollout_sample_hook",
        returning(Sample(index=99)),
        "returned a Sample with index 99 for sample 0 (group 0); expected 0",
        "copy.copy",
    ),
    "looked at and moved": Wrong(
        "rollout_sample_hook", lambda sample: setattr(sample, "index", 5), "a Sample with index 5 for sample 0 (group 0)", "in place"
    ),
    "looked at and gave text": Wrong("rollout_sample_hook", returning("x"), "returned str for sample 0", "in place"),
    "looked at and cut": Wrong(
        "rollout_sample_hook",
        lambda sample: sample.rollout_log_probs.pop() and None,
        "rollout_log_probs of sample 0 (group 0) has",
        "aligned",
    ),
    "shaped with nan": Wrong("shape_reward", returning(float("nan")), "returned nan as an addition to the reward for sample", "return 0.0"),
    "filtered None": Wrong(
        "dynamic_sampling_filter", verdict(None), "returned None for group 1; expected DynamicFilterOutput", "return Dyn"
    ),
    "filtered a list": Wrong("dynamic_sampling_filter", in_all(lambda g: g), "returned list", "single samples are taken out by"),
    "filtered a word": Wrong("dynamic_sampling_filter", verdict("no"), "returned str 'no' for group 1", "return DynamicFilterOutput"),
    "filtered with a keep of None": Wrong(
        "dynamic_sampling_filter",
        verdict(DynamicFilterOutput(keep=None)),
        "DynamicFilterOutput(keep=None) for group 1",
        "keep=bool",
    ),
    "filtered with a number as reason": Wrong(
        "dynamic_sampling_filter",
        verdict(DynamicFilterOutput(False, 0.5)),
        "gave float 0.5 as the reason for group 1",
        "reason=",
    ),
    "filtered and cut": Wrong(
        "dynamic_sampling_filter", in_all(lambda g: bool(g.pop())), "was shown a group of 2 samples and left 1 in it", "verdict"
    ),
    "removed a group": Wrong("rollout_sample_filter", in_all(lambda g: g.pop() and None), "changed the batch", "remove_sample = True"),
    "removed a sample": Wrong("rollout_sample_filter", in_all(lambda g: g[0].pop() and None), "changed the batch", "remove_sample = True"),
    "put None into the batch": Wrong("rollout_sample_filter", in_all(lambda g: set_item(g, 0, None)), "changed the batch", "remove_sample"),
    "returned what is left": Wrong(
        "rollout_sample_filter", in_all(lambda g: g[:1]), "returned a list of 1, which nothing uses; expected None", "remove_sample = True"
    ),
    "removed with a word": Wrong(
        "rollout_sample_filter", in_all(removing("yes")), "remove_sample of sample 2 (group 1) to 'yes'", "= True"
    ),
    "put one back": Wrong(
        "rollout_sample_filter", [in_all(removing(True)), in_all(removing(False))], "put sample 2 (group 1) back", "remove_sample |="
    ),
    "saw and changed a reward": Wrong(
        "process_all_samples",
        over_everything(lambda g: setattr(g[1][1], "reward", 9.0)),
        "changed reward of sample 3 (group 1)",
        "fixed here",
    ),
    "saw and changed a mask": Wrong(
        "process_all_samples", over_everything(lambda g: setattr(g[0][0], "loss_mask", [0])), "changed loss_mask of sample 0", "fixed here"
    ),
    "saw and added a token": Wrong(
        "process_all_samples", over_everything(lambda g: g[0][0].tokens.append(1)), "changed tokens of sample 0 (group 0)", "fixed here"
    ),
    "saw and removed": Wrong(
        "process_all_samples", over_everything(lambda g: setattr(g[0][0], "remove_sample", True)), "changed remove_sample of", "fixed here"
    ),
    "saw and cut a group": Wrong("process_all_samples", over_everything(lambda g: g[0].pop() and None), "changed the batch", "instead of"),
    "saw and returned": Wrong("process_all_samples", over_everything(lambda g: g[1:]), "returned a list of 1, which", "return nothing"),
    "logged into what it returned": Wrong(
        "log_rollout_data", log(lambda m: {"a": 1}), "returned a dict; expected True (to skip the built-in log)", "added there is logged"
    ),
    "logged a word": Wrong("log_rollout_data", log(lambda m: m.update(best="x")), "the metric 'best' = str 'x'; expected", "value.item()"),
    "logged nan": Wrong("log_rollout_data", log(lambda m: m.update(a=float("nan"))), "the metric 'a' = float nan", "leave out"),
    "logged a list": Wrong("log_rollout_data", log(lambda m: m.update(a=[1])), "the metric 'a' = list [1]", "sum(values)"),
    "logged under a number": Wrong("log_rollout_data", log(lambda m: m.update({3: 1})), "the metric 3 = int 1; expected a name", "number"),
    "logged and cleared": Wrong("log_rollout_data", log(lambda m: m.clear()), "removed the metric 'groups_kept'", "under other names"),
    "logged another count": Wrong(
        "log_rollout_data", log(lambda m: m.update(samples_trained=0)), "changed the metric 'samples_trained'", "under other names"
    ),
    "logged an evaluation as a dict": Wrong(
        "log_eval_rollout_data", returning({"a": 1}), "log_eval_rollout_data returned a dict", "added there is logged", evaluation=True
    ),
    "rolled out None": Wrong(
        "generate_rollout", made(lambda g: None), "returned None; expected RolloutFnTrainOutput", "RolloutFnTrainOutput("
    ),
    "rolled out a pair": Wrong(
        "generate_rollout", made(lambda g: (g, {})), "returned tuple; expected RolloutFnTrainOutput", "return Rollout"
    ),
    "rolled out an evaluation": Wrong(
        "generate_rollout", made(lambda g: RolloutFnEvalOutput({})), "returned RolloutFnEvalOutput; expected", "this call was for training"
    ),
    "rolled out samples of None": Wrong(
        "generate_rollout",
        made(lambda g: RolloutFnTrainOutput(None)),
        "RolloutFnTrainOutput(samples=NoneType)",
        "samples=[[",
    ),
    "rolled out flat": Wrong("generate_rollout", made(lambda g: g[0]), "returned Sample as group 0", "not a flat list"),
    "rolled out too few groups": Wrong("generate_rollout", made(lambda g: g[:1]), "returned 1 groups, expected 2", "exactly args"),
    "rolled out one sample twice": Wrong(
        "generate_rollout", made(lambda g: [g[0], [g[0][0], g[1][1]]]), "group 1: sample 0 appears twice in the rollout", "copy it"
    ),
    "rolled out small groups": Wrong(
        "generate_rollout", made(lambda g: [g[0], g[1][:1]]), "group 1 has 1 rollouts, expected 2", "whole groups"
    ),
    "rolled out no sample": Wrong("generate_rollout", made(lambda g: [g[0], [g[1][0], "x"]]), "group 1 holds a str", "data_source"),
    "rolled out an aborted one": Wrong(
        "generate_rollout", made(lambda g: (setattr(g[0][0], "status", Status.ABORTED), g)[1]), "sample 0 has status aborted", "set sample"
    ),
    "rolled out a metric that is none": Wrong(
        "generate_rollout",
        made(lambda g: RolloutFnTrainOutput(g, {"a": "b"})),
        "the metric 'a' = str 'b'",
        "plain number",
    ),
    "evaluated nothing": Wrong(
        "generate_rollout", returning(None), "the evaluation returned None", "return RolloutFnEvalOutput", evaluation=True
    ),
    "evaluated as if for training": Wrong(
        "generate_rollout", made(lambda g: g), "the evaluation returned list", "a parameter `evaluation`, True here", evaluation=True
    ),
    "evaluated without samples": Wrong(
        "generate_rollout", returning({"a": {"rewards": []}}), "dataset 'a' lacks truncated, samples", "three lists", evaluation=True
    ),
    "evaluated under a number": Wrong("generate_rollout", returning({3: {}}), "has the name 3; expected a str", "name it", evaluation=True),
    "evaluated a list": Wrong("generate_rollout", returning({"a": [1.0]}), "dataset 'a' is a list", "three lists", evaluation=True),
    "evaluated lists of two lengths": Wrong(
        "generate_rollout",
        returning({"a": {"rewards": [1.0], "truncated": [], "samples": []}}),
        "dataset 'a' has lists of different lengths",
        "three lists",
        evaluation=True,
    ),
    "evaluated None as a list": Wrong(
        "generate_rollout",
        returning({"a": {"rewards": None, "truncated": [], "samples": []}}),
        "dataset 'a' has a NoneType as rewards",
        "three lists",
        evaluation=True,
    ),
    "made no source": Wrong("make_data_source", returning(None), "make_data_source returned None without get_samples", "a data source has"),
    "made a class": Wrong("make_data_source", returning(Source), "make_data_source returned the class Source", "return an object: Source("),
    "made half a source": Wrong(
        "make_data_source", returning(OneMethod()), "a OneMethod without add_samples, save, load, __len__", "a data source has"
    ),
    "handed out nothing at all": Wrong("make_data_source", source(lambda g: None), "get_samples(2) returned NoneType", "a list of groups"),
    "handed out a coroutine": Wrong("make_data_source", source(lambda groups: Later()), "get_samples(2) returned Later", "not `async def`"),
    "handed out flat": Wrong("make_data_source", source(lambda g: g[0]), "get_samples(2) returned Sample as group 0", "not a flat list"),
    "handed out too many": Wrong(
        "make_data_source", source(lambda g: [*g, [Sample(), Sample()]]), "returned 3 groups; expected at most 2", "asked for"
    ),
    "handed out small groups": Wrong(
        "make_data_source", source(lambda g: [g[0], g[1][:1]]), "a group of 1 rollouts (position 1); expected 2", "n_samples_per_prompt"
    ),
    "handed out one twice": Wrong("make_data_source", source(lambda g: [g[0], g[0]]), "handed out sample 0 (group 0) twice", "new Sample"),
    "handed out text": Wrong("make_data_source", source(lambda g: [["p", "p"]]), "a list with something else as group 0", "n_samples_per"),
    "took None from the buffer": Wrong("buffer_filter", returning(None), "expected a list of groups, got NoneType", "return some of"),
}


def call(wrong: Wrong, setup_run: Run) -> None:
    run = setup_run(**{wrong.hook: wrong.function})
    if wrong.hook == "buffer_filter":
        run.source.add_samples(run.source.get_samples(1))
    run.evaluate() if wrong.evaluation else run.train()


@pytest.mark.parametrize("name", ZOO)
def test_a_wrong_function_is_named_with_the_way_out(setup_run: Run, name: str) -> None:
    wrong = ZOO[name]
    with pytest.raises(ContractError) as caught:
        call(wrong, setup_run)
    number = len(wrong.function) - 1 if isinstance(wrong.function, list) else 0
    assert f"plugin '{wrong.hook}-{number}'" in caught.value.message
    assert wrong.message in caught.value.message
    assert wrong.hint in (caught.value.hint or "")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("reason", "counted"),
    [
        ("too long!", "too_long_"),
        ("a/b\nc", "a_b_c"),
        ("zero_std_-0.5", "zero_std_-0.5"),
        ("", "dynamic_sampling_filter-0"),
        ("x" * 99, "x" * 64),
    ],
)
def test_a_reason_becomes_a_part_of_a_metrics_name(setup_run: Run, reason: str, counted: str) -> None:
    run = setup_run(dynamic_sampling_filter=verdict(DynamicFilterOutput(False, reason)))
    assert run.train().metrics[f"dynamic_filter/drop_{counted}"] == 1


def test_of_a_long_path_the_functions_name_is_counted() -> None:
    verdict_of = check_verdict("x", f"path:{'package.' * 20}filters.keep_hard", False, [Sample()])
    assert len(verdict_of.reason or "") == 64 and (verdict_of.reason or "").endswith("package.filters.keep_hard")


def test_numpy_bools_are_bools(setup_run: Run) -> None:
    numpy = pytest.importorskip("numpy")
    run = setup_run(
        dynamic_sampling_filter=verdict(numpy.bool_(False)),
        rollout_sample_filter=lambda samples: setattr(samples[0][0], "remove_sample", numpy.bool_(True)),
        log_rollout_data=returning(numpy.bool_(True)),
    )
    rollout = run.train()
    assert [group[0].group_index for group in rollout.groups] == [0, 2]
    assert rollout.groups[0][0].remove_sample is True
    assert rollout.logged_by_plugin is True


def test_a_keep_without_dimensions_is_a_bool(setup_run: Run) -> None:
    numpy = pytest.importorskip("numpy")
    run = setup_run(dynamic_sampling_filter=verdict(DynamicFilterOutput(numpy.array(False), "no")))
    assert run.train().metrics["dynamic_filter/drop_no"] == 1


def test_what_is_harmless_is_accepted(setup_run: Run) -> None:
    def sums(samples: list[list[Sample]]) -> Any:
        samples[0][0].remove_sample = True
        return samples

    def log_rollout_data(rollout_extra_metrics: dict[str, Any]) -> bool:
        rollout_extra_metrics |= {"raw_reward": 7.0, "mine": 1}
        return False

    run = setup_run(rollout_sample_filter=sums, process_all_samples=over_everything(lambda g: g), log_rollout_data=log_rollout_data)
    metrics = run.train().metrics
    assert (metrics["removed_samples"], metrics["raw_reward"], metrics["mine"]) == (1, 7.0, 1)


def test_fan_out_is_filled_in_and_flattened(setup_run: Run) -> None:
    run = setup_run(custom_generate=answered(lambda s: [[copy.deepcopy(s)], [copy.deepcopy(s)]]), reward=returning(1.0))
    groups = run.train().groups
    assert [sample.rollout_id for sample in groups[1]] == [2, 2, None]
    assert [sample.index for sample in groups[1]] == [2, 2, 3]


def test_the_counts_of_a_fan_out_that_goes_on_from_the_buffer_add_up(setup_run: Run) -> None:
    run = setup_run(custom_generate=answered(several(None, None)), reward=returning(1.0), partial_rollout=True)
    groups = run.source.get_samples(2)
    for sample in (sample for group in groups for sample in group):
        answer(sample).status = Status.ABORTED
        sample.reward = None
    run.source.add_samples(groups)
    metrics = run.train().metrics
    assert metrics["samples_from_buffer"] == 4 and metrics["samples_generated"] == 1
    assert metrics["samples_trained"] == 5


def test_the_counts_of_a_rollout_function_add_up(setup_run: Run) -> None:
    def one_failed(groups: list[list[Sample]]) -> Any:
        groups[0][0].status, groups[0][0].reward = Status.FAILED, None
        groups[0][1].remove_sample = True
        return groups

    metrics = setup_run(generate_rollout=made(one_failed), on_reward_error="drop").train().metrics
    assert metrics["samples_generated"] == 4
    ends = ("samples_trained", "removed_samples", "samples_failed")
    assert [metrics[key] for key in ends] == [2, 1, 1]


OUT = ("samples_trained", "removed_samples", "samples_filtered", "samples_to_buffer", "samples_aborted", "samples_failed", "samples_stale")


@pytest.mark.parametrize("latency", [0.0, 0.002])
@pytest.mark.parametrize("options", [{}, {"partial_rollout": True}, {"max_staleness": 1}])
@pytest.mark.parametrize("fan_out", [False, True])
def test_every_sample_ends_in_one_counted_place(setup_run: Run, latency: float, options: dict[str, Any], fan_out: bool) -> None:
    calls = 0

    async def custom_rm(sample: Sample) -> float:
        nonlocal calls
        calls += 1
        if calls % 13 == 0:
            raise ValueError("now and then")
        return float(sample.group_index or 0) % 3 if fan_out else float((sample.index or 0) % 2)

    async def custom_generate(sample: Sample, sampling_params: Any, engine: Any) -> Any:
        sample.tokens = sample.tokens or [1, 2]
        made = await engine.generate(sample.tokens, sampling_params)
        sample.append_response_tokens(tokens=made.token_ids, log_probs=made.log_probs)
        sample.status = Status.ABORTED if made.finish_reason == "abort" else Status.COMPLETED
        is_two = sample.status is Status.COMPLETED and (sample.index or 0) % 3 == 0
        return [sample, copy.deepcopy(sample)] if is_two else sample

    def rollout_sample_filter(samples: list[list[Sample]]) -> None:
        samples[0][0].remove_sample = True

    def dynamic_sampling_filter(samples: list[Sample]) -> bool:
        return samples[0].group_index is not None and samples[0].group_index % 4 != 1

    hooks: dict[str, Any] = {"dynamic_sampling_filter": dynamic_sampling_filter, "rollout_sample_filter": rollout_sample_filter}
    hooks |= {"custom_generate": custom_generate} if fan_out else {}
    run = setup_run(
        **hooks,
        reward=custom_rm,
        latency=latency,
        failure_rate=0.1,
        on_reward_error="drop",
        over_sampling_batch_size=7,
        generation_retries=0,
        dynamic_sampling_max_rounds=50,
        **options,
    )
    for rollout_id in range(6):
        run.source.weight_version = rollout_id
        metrics = run.train(rollout_id).metrics
        came_in = metrics["samples_generated"] + metrics["samples_from_buffer"]
        assert came_in == sum(metrics[key] for key in OUT)


def test_a_function_that_gives_a_coroutine_is_awaited(setup_run: Run) -> None:
    async def later(args: Any, data_source: Any) -> Any:
        return made(lambda groups: groups)(args, data_source)

    def generate_rollout(args: Any, data_source: Any) -> Any:
        return later(args, data_source)

    assert len(setup_run(generate_rollout=generate_rollout).train().groups) == 2


def test_a_data_source_may_be_made_by_a_coroutine(setup_run: Run) -> None:
    async def make_data_source() -> Any:
        return Source()

    assert len(setup_run(make_data_source=make_data_source).train().groups) == 2


def test_an_error_of_the_data_source_names_it(setup_run: Run) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        setup_run(make_data_source=source(lambda groups: 1 / 0)).train()
    assert "in get_samples of the data source Source of plugin 'make_data_source-0'" in caught.value.__notes__
    assert "in rollout 0" in caught.value.__notes__


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
