"""Every setting of an evaluation dataset has its effect in a run: on the prompt, the request, the reward or the scores."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vime.api import Sample, hookimpl
from vime.config.eval import EvalDatasetConfig
from vime.config.run_config import RunConfig
from vime.data.dataset import check_prompt_data
from vime.errors import ConfigError, ContractError, DataError
from vime.outputs import RolloutFnEvalOutput
from vime.plugins.manager import PluginManager
from vime.rollout.context import RolloutContext
from vime.rollout.evaluate import eval_metrics, shortfalls
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.runtime.build import build_eval_datasets
from vime.sample import Status
from vime.testing.fakes import FakeEngine, FakeTokenizer

NUM_GPUS = 0

ROW = {"input": "p", "q": "other", "answer": "7", "metadata": {"from": "row"}, "meta": {"from": "meta"}, "tools": [{"name": "add"}]}


def constant(value: float) -> Any:
    return lambda sample: value


def by_index(sample: Sample) -> float:
    return float((sample.index or 0) % 2)


class Evaluated:
    """Runs an evaluation of datasets of two rows with these entries, and keeps what came of it."""

    def __init__(
        self, folder: Path, *entries: dict[str, Any], rewards: dict[str, Any] | None = None, rows: Any = None, **flags: Any
    ) -> None:
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in ([ROW, ROW] if rows is None else rows)))
        named = [{"name": f"d{number}", "path": str(path), **entry} for number, entry in enumerate(entries)]
        defaults = flags.pop("defaults", {})
        given = {"eval": {"defaults": defaults, "datasets": named}, "num_rollout": 0, "rollout_max_response_len": 4, **flags}
        self.config = RunConfig(**given)
        self.plugins = PluginManager.load(self.config)
        for name, function in ({"by-index": by_index} if rewards is None else rewards).items():
            module = ModuleType(name.replace("-", "_"))
            setattr(module, "custom_rm", hookimpl(function))  # noqa: B010 - a module has no such attribute to a type checker
            self.plugins.add(module, name=name)
        self.engine = FakeEngine()
        check_prompt_data(self.config)
        datasets = build_eval_datasets(self.config, FakeTokenizer())
        context = RolloutContext(self.config, self.engine, self.plugins, RewardScorer(self.config, self.plugins), deterministic=True)
        runner = RolloutRunner(context, VllmRollout(context, None, datasets))
        self.output, self.metrics, _ = asyncio.run(asyncio.wait_for(runner.evaluate(0), 30))

    def samples(self, name: str = "d0") -> list[Sample]:
        return self.output.data[name]["samples"]

    @property
    def requests(self) -> list[Any]:
        return [request.sampling_params for request in self.engine.requests]


@pytest.mark.parametrize(
    ("setting", "parameter"),
    [
        ({"temperature": 0.25}, {"temperature": 0.25}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"top_k": 3}, {"top_k": 3}),
        ({"max_response_len": 3}, {"max_new_tokens": 3}),
        ({"min_new_tokens": 2}, {"min_new_tokens": 2}),
        ({"repetition_penalty": 1.25}, {"repetition_penalty": 1.25}),
        ({"stop": ["x", "y"]}, {"stop": ["x", "y"]}),
        ({"stop_token_ids": [9]}, {"stop_token_ids": [9]}),
    ],
)
def test_sampling_settings_reach_the_requests_of_their_dataset_only(
    tmp_path: Path, setting: dict[str, Any], parameter: dict[str, Any]
) -> None:
    own = Evaluated(tmp_path, setting, {})
    ((name, value),) = parameter.items()
    assert [request[name] == value for request in own.requests] == [True, True, False, False]
    shared = Evaluated(tmp_path, {}, {}, defaults=setting)
    assert all(request[name] == value for request in shared.requests)


def test_n_samples_is_the_datasets_own(tmp_path: Path) -> None:
    run = Evaluated(tmp_path, {"n_samples_per_eval_prompt": 4}, {"n_samples_per_eval_prompt": 3}, {})
    assert [len(run.samples(f"d{number}")) for number in range(3)] == [8, 6, 2]
    assert [name for name in run.metrics if "pass@" in name] == [
        "d0-pass@1",
        "d0-pass@2",
        "d0-pass@4",
        "d1-pass@1",
        "d1-pass@2",
        "d2-pass@1",
    ]


def test_keys_of_the_row(tmp_path: Path) -> None:
    plain, own = {}, {"input_key": "q", "label_key": "answer", "metadata_key": "meta", "tool_key": "no_tools"}
    rows = [{**ROW, "no_tools": [{"name": "mul"}]}] * 2
    run = Evaluated(tmp_path, plain, own, rows=rows)
    first, second = run.samples("d0")[0], run.samples("d1")[0]
    assert (first.prompt, first.label, first.metadata) == ("p", None, {"from": "row", "tools": [{"name": "add"}]})
    assert (second.prompt, second.label, second.metadata) == ("other", "7", {"from": "meta", "tools": [{"name": "mul"}]})


class Template(FakeTokenizer):
    def apply_chat_template(self, conversation: Any, tools: Any = None, **options: Any) -> Any:
        return f"{options.get('style', 'plain')}:{conversation[0]['content']}:{[tool['name'] for tool in tools or []]}"


def test_the_chat_template_its_arguments_and_the_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.FakeTokenizer", Template)
    plain, wrapped = {"apply_chat_template": False}, {"apply_chat_template_kwargs": {"style": "short"}}
    run = Evaluated(tmp_path, plain, wrapped, apply_chat_template=True)
    assert run.samples("d0")[0].prompt == "p" and run.samples("d1")[0].prompt == "short:p:['add']"
    flags = Evaluated(tmp_path, {}, apply_chat_template=True, apply_chat_template_kwargs={"style": "long"})
    assert flags.samples()[0].prompt == "long:p:['add']"


def test_rm_type_then_metadata_overrides_over_the_rows_own(tmp_path: Path) -> None:
    rewards = {"a": constant(1.0), "b": constant(2.0), "c": constant(3.0)}
    rows = [{"input": "p", "metadata": {"rm_type": "a", "level": 1}}, {"input": "p"}]
    run = Evaluated(
        tmp_path,
        {},
        {"rm_type": "b"},
        {"rm_type": "b", "metadata_overrides": {"rm_type": "c", "level": 5}},
        rewards=rewards,
        rows=rows,
        rm_type="c",
    )
    assert [run.output.data[f"d{number}"]["rewards"] for number in range(3)] == [[1.0, 3.0], [2.0, 2.0], [3.0, 3.0]]
    assert [sample.metadata for sample in run.samples("d2")] == [{"rm_type": "c", "level": 5}] * 2
    assert run.samples("d0")[0].metadata == {"rm_type": "a", "level": 1}


def test_custom_rm_and_custom_generate_of_one_dataset(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from vime.api import Status\n"
        "async def generate(args, sample, sampling_params, evaluation=False):\n"
        "    sample.tokens = [1]\n"
        "    sample.append_response_tokens(tokens=[2], log_probs=[-1.0], text='mine' if evaluation else 'not')\n"
        "    sample.status = Status.COMPLETED\n"
        "    return sample\n"
        "async def score(args, sample):\n"
        "    return 5.0\n"
    )
    own = {"custom_rm_path": f"{tmp_path}/own.py:score", "custom_generate_function_path": f"{tmp_path}/own.py:generate"}
    run = Evaluated(tmp_path, own, {})
    assert run.output.data["d0"]["rewards"] == [5.0, 5.0] and run.output.data["d1"]["rewards"] == [0.0, 1.0]
    assert [sample.response for sample in run.samples("d0")] == ["mine"] * 2
    assert len(run.requests) == 2  # those of d1


def test_group_rewards_in_an_evaluation(tmp_path: Path) -> None:
    groups: list[int] = []

    async def whole(samples: list[Sample]) -> list[float]:
        groups.append(len(samples))
        return [float(sample.index == max(one.index or 0 for one in samples)) for sample in samples]

    run = Evaluated(tmp_path, {"n_samples_per_eval_prompt": 2}, {"n_samples_per_eval_prompt": 4}, rewards={"whole": whole}, group_rm=True)
    assert sorted(groups) == [2, 2, 4, 4]
    assert (run.metrics["d0"], run.metrics["d1"]) == (0.5, 0.25)
    assert (run.metrics["d1-pass@1"], run.metrics["d1-pass@2"], run.metrics["d1-pass@4"]) == (0.25, 0.5, 1.0)


def test_datasets_are_generated_at_the_same_time(tmp_path: Path) -> None:
    both = asyncio.Event()
    waiting: set[str] = set()

    async def meets(args: Any, sample: Sample) -> float:
        waiting.add(sample.metadata["who"])
        if len(waiting) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 10)
        return 1.0

    first, second = ({"metadata_overrides": {"who": who}} for who in "ab")
    assert Evaluated(tmp_path, first, second, rewards={"meets": meets}).metrics["d1"] == 1.0


# A function for evaluations only

OWN_EVALUATION = """
from vime.api import RolloutFnEvalOutput, Sample, Status


def evaluate(args, rollout_id, data_source, evaluation=False):
    assert evaluation and data_source is None
    samples = [Sample(index=i, group_index=i // 2, reward=float(i), status=Status.COMPLETED) for i in range(4)]
    names = [dataset.name for dataset in args.eval_datasets]
    return {name: {"rewards": [0, 1, 2, 3], "truncated": [False] * 4, "samples": samples} for name in names}


def roll(args, rollout_id, data_source, evaluation=False):
    raise AssertionError("this is for training")
"""


def test_an_evaluation_function_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_EVALUATION)
    run = Evaluated(tmp_path, {"n_samples_per_eval_prompt": 2}, eval_function_path=f"{tmp_path}/own.py:evaluate", rewards={})
    assert not run.requests
    assert (run.metrics["d0"], run.metrics["d0-pass@1"], run.metrics["d0-pass@2"]) == (1.5, 0.75, 1.0)


def test_the_built_in_evaluation_beside_a_rollout_function_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_EVALUATION)
    built_in = "vime.rollout.vllm_rollout.generate_rollout"
    run = Evaluated(tmp_path, {}, rollout_function_path=f"{tmp_path}/own.py:roll", eval_function_path=built_in)
    assert run.metrics["d0"] == 0.5 and len(run.requests) == 2


# min_eval_samples


def failing(sample: Sample) -> float:
    if sample.index == 0:
        raise RuntimeError("no judge")
    return 1.0


def test_too_few_good_rollouts_give_no_score(tmp_path: Path) -> None:
    run = Evaluated(tmp_path, {"min_eval_samples": 2}, {"min_eval_samples": 1}, rewards={"failing": failing}, on_reward_error="drop")
    assert "d0" not in run.metrics and "d0-pass@1" not in run.metrics and run.metrics["d0/failed_samples"] == 1
    assert run.metrics["d1"] == 0.5
    (line,) = shortfalls(run.config, run.output).values()
    assert line == (
        "evaluation dataset 'd0': 1 of 2 rollouts were generated and scored, fewer than its min_eval_samples 2: no score is reported"
    )


def test_more_samples_than_a_dataset_can_have_are_refused_at_start(tmp_path: Path) -> None:
    message = r"evaluation dataset 'd0': min_eval_samples is 5, but 2 rows x 2 samples are 4"
    with pytest.raises(ConfigError, match=message):
        Evaluated(tmp_path, {"min_eval_samples": 5, "n_samples_per_eval_prompt": 2})
    Evaluated(tmp_path, {"min_eval_samples": 4, "n_samples_per_eval_prompt": 2})


# Empty data


def test_an_empty_file_gives_no_mean_beside_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    run = Evaluated(tmp_path, {"path": str(tmp_path / "empty.jsonl")}, {"apply_chat_template": True})
    assert run.output.data["d0"] == {"rewards": [], "truncated": [], "samples": []}
    assert not [name for name in run.metrics if name.startswith("d0")] and run.metrics["d1"] == 0.5
    assert "empty.jsonl has no rows: its evaluation has no score" in caplog.text


def test_nothing_but_empty_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is nothing to evaluate on: .*rows\.jsonl has no rows"):
        Evaluated(tmp_path, {}, rows=[])


@pytest.mark.parametrize("end", ["@[5:9]", "@[2:]", "@[1:1]"])
def test_a_slice_that_selects_nothing_is_refused(tmp_path: Path, end: str) -> None:
    with pytest.raises(DataError, match=r"selects no row: .* has 2 rows") as caught:
        Evaluated(tmp_path, {"path": f"{tmp_path}/rows.jsonl{end}"})
    assert caught.value.__notes__ == ["it is the data of the evaluation dataset 'd0'"]


# Scores


def output(*answers: tuple[int | None, int | None, float, Status], name: str = "a") -> RolloutFnEvalOutput:
    """One dataset of samples (group_index, rollout_id, reward, status)."""
    samples = [Sample(group_index=group, rollout_id=rollout, reward=reward, status=status) for group, rollout, reward, status in answers]
    rewards = [reward for _, _, reward, _ in answers]
    return RolloutFnEvalOutput({name: {"rewards": rewards, "truncated": [False] * len(samples), "samples": samples}})


DONE, FAILED = Status.COMPLETED, Status.FAILED


def test_pass_at_k_is_unbiased() -> None:
    answers = [(0, None, float(i < 2), DONE) for i in range(4)] + [(1, None, 0.0, DONE)] * 4
    metrics = eval_metrics(RunConfig(), output(*answers), {"a": 4})
    # 1 - C(2, 2) / C(4, 2) = 5/6 for the first prompt, 0 for the second
    assert [metrics[f"a-pass@{k}"] for k in (1, 2, 4)] == pytest.approx([0.25, 5 / 12, 0.5])


def test_samples_of_one_rollout_are_one_answer() -> None:
    fan_out = [(0, 0, 1.0, DONE)] * 3 + [(0, 1, 0.0, DONE), (1, 2, 0.0, DONE), (1, 3, 0.0, DONE)]
    metrics = eval_metrics(RunConfig(), output(*fan_out), {"a": 2})
    assert (metrics["a"], metrics["a-pass@1"], metrics["a-pass@2"]) == (0.25, 0.25, 0.5)


def test_samples_of_one_rollout_with_different_rewards_are_refused() -> None:
    with pytest.raises(ContractError, match=r"the samples of rollout 7 \(group 0\) have different rewards: \[0.0, 1.0\]"):
        eval_metrics(RunConfig(), output((0, 7, 1.0, DONE), (0, 7, 0.0, DONE)), {"a": 1})


@pytest.mark.parametrize("threshold", [1.0, 0.0, -1.0])
def test_a_failed_answer_is_wrong_whatever_the_threshold(threshold: float) -> None:
    answers = output((0, None, 1.0, DONE), (0, None, 0.0, FAILED))
    metrics = eval_metrics(RunConfig(eval_success_threshold=threshold), answers, {"a": 2})
    assert (metrics["a-pass@1"], metrics["a-pass@2"], metrics["a/failed_samples"]) == (0.5, 1.0, 1)


@pytest.mark.parametrize(("threshold", "expected"), [(1.0, 0.0), (0.5, 1.0), (0.7, 0.5)])
def test_the_threshold_decides_what_is_right(threshold: float, expected: float) -> None:
    answers = output((0, None, 0.5, DONE), (0, None, 0.9, DONE))
    assert eval_metrics(RunConfig(eval_success_threshold=threshold), answers, {"a": 2})["a-pass@1"] == expected


def test_samples_without_a_group_are_taken_in_order() -> None:
    answers = output(*((None, None, reward, DONE) for reward in (1.0, 0.0, 0.0, 0.0)))
    assert eval_metrics(RunConfig(), answers, {"a": 2})["a-pass@2"] == 0.5
    alone = eval_metrics(RunConfig(), answers, {"a": 3})  # no three after each other
    assert [name for name in alone if "pass@" in name] == ["a-pass@1"] and alone["a-pass@1"] == 0.25


def test_fewer_answers_than_n_give_fewer_k() -> None:
    answers = output((0, None, 1.0, DONE), (0, None, 0.0, DONE), (1, None, 0.0, DONE))
    assert [name for name in eval_metrics(RunConfig(), answers, {"a": 4}) if "pass@" in name] == ["a-pass@1"]


def test_every_setting_is_tried_here() -> None:
    """A new setting needs a test of its effect."""
    source = Path(__file__).read_text(encoding="utf-8")
    assert not [name for name in EvalDatasetConfig.model_fields if name not in ("name", "path") and f'"{name}"' not in source]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
