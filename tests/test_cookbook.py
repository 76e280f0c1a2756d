"""The plugins of examples/cookbook: each passes its checks as an installed one, and does what its page says in a rollout."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import threading
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vime.api import Sample, Status, hookimpl
from vime.cli.app import main
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.rollout.context import RolloutContext
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import Rollout, RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.runtime.build import build_data_source
from vime.testing import FakeEngine, FakeTokenizer, finished_group

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "examples" / "cookbook" / "src"
PROJECT = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PLUGINS: dict[str, str] = PROJECT["entry-points"]["vime.plugins"]


class Judge(http.server.BaseHTTPRequestHandler):
    """A judge for whom an answer is worth its first digit, and which has no grade for a question."""

    keys: list[str | None] = []  # noqa: RUF012 - what came, for the test to look at

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = body["messages"][-1]["content"].rpartition("The answer to grade:\n")[2]
        self.keys.append(self.headers.get("Authorization"))
        grade = next((char for char in answer if char.isdigit()), "0")
        text = "I pass." if "?" in answer else f"It says {answer[:20]!r}.\nGrade: {grade}"
        reply = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def judge() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cookbook as a distribution on the path, with the metadata that its pyproject.toml says."""
    info = tmp_path / "site" / "vime_cookbook-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info.parent / "vime_cookbook").symlink_to(SOURCE / "vime_cookbook")
    required = "".join(f"Requires-Dist: {each}\n" for each in PROJECT["dependencies"])
    about = f"Summary: {PROJECT['description']}\nLicense-Expression: {PROJECT['license']}\nRequires-Python: {PROJECT['requires-python']}\n"
    readme = (SOURCE.parent / PROJECT["readme"]).read_text(encoding="utf-8")
    name = f"Metadata-Version: 2.4\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n"
    (info / "METADATA").write_text(f"{name}{about}{required}\n{readme}", encoding="utf-8")
    (info / "entry_points.txt").write_text("[vime.plugins]\n" + "".join(f"{key} = {value}\n" for key, value in PLUGINS.items()))
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(info.parent), *filter(None, [os.environ.get("PYTHONPATH")])]))


@pytest.fixture
def cookbook(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], type]:
    """`cookbook("pass-rate")`: the class of a plugin."""
    monkeypatch.syspath_prepend(str(SOURCE))

    def load(name: str) -> type:
        module, _, target = PLUGINS[name].partition(":")
        return getattr(import_module(module), target)

    return load


@pytest.fixture
def rollout(cookbook: Callable[[str], type], tmp_path: Path) -> Callable[..., Rollout]:
    """`rollout({"pass-rate": {"low": 0.2}}, policy={"1+1=": "2"}, rm=score, ...)`: a training rollout; the rest are options of the run.

    Without rows the data source of the plugins is asked. `rm` is the reward of all samples.
    """

    def run(
        plugins: dict[str, dict[str, Any]],
        policy: Any = None,
        rows: list[dict[str, Any]] | None = None,
        rm: Callable[[Any, Sample], Any] | None = None,
        **options: Any,
    ) -> Rollout:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows or [{"input": "1+1=", "label": "2"}]))
        sizes = {"rollout_batch_size": 1, "n_samples_per_prompt": 4, "rollout_max_response_len": 40, "num_rollout": 1, "label_key": "label"}
        config = RunConfig(prompt_data=str(path), **{**sizes, **options})
        manager = PluginManager()
        for name, settings in plugins.items():
            manager.add(cookbook(name), name=name, settings=settings)
        if rm is not None:
            module = ModuleType("rm")
            module.custom_rm = _marked(rm)  # pyright: ignore[reportAttributeAccessIssue]
            manager.add(module, name="rm")
        context = RolloutContext(config, FakeEngine(policy=policy), manager, RewardScorer(config, manager), deterministic=True)
        source = build_data_source(config, manager, FakeTokenizer())
        runner = RolloutRunner(context, VllmRollout(context, source, []))
        done = asyncio.run(asyncio.wait_for(runner.train(0), 30))
        run.source = source
        return done

    return run


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    async def custom_rm(args: Any, sample: Sample) -> Any:
        return function(args, sample)

    return hookimpl(custom_rm)


def right(args: Any, sample: Sample) -> float:
    return float(sample.response.startswith(str(sample.label)))


def by_seed(*responses: str) -> Callable[..., str]:
    """A policy that gives the requests these responses in turn."""
    left = list(responses)
    return lambda tokens, params: left.pop(0)


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_each_passes_its_checks_as_an_installed_plugin(name: str, installed: None, judge: str, capsys: Any) -> None:
    more = ["--set", f"url={judge}"] if name == "llm-judge" else []
    code = main(["plugin", "check", name, "--json", *more])
    report = json.loads(capsys.readouterr().out)
    assert [check for check in report["checks"] if check["status"] == "fail"] == []
    assert code == 0
    hooks = [check["id"] for check in report["checks"] if check["status"] == "pass" and not check["id"].startswith("package-")]
    assert len(hooks) >= 2, "no hook was checked"


def test_there_are_ten_and_each_has_a_module_of_its_own() -> None:
    modules = {path.stem for path in (SOURCE / "vime_cookbook").glob("*.py")} - {"__init__"}
    assert {target.split(":")[0].removeprefix("vime_cookbook.") for target in PLUGINS.values()} == modules
    assert len(modules) == 10


def test_the_judge_grades_and_gets_the_key_from_the_environment(rollout: Any, judge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "secret")
    Judge.keys.clear()
    done = rollout({"llm-judge": {"url": judge}}, by_seed("7", "none", "3 of 10", "9"))
    assert [sample.reward for sample in done.groups[0]] == [0.7, 0.0, 0.3, 0.9]
    assert Judge.keys == ["Bearer secret"] * 4


def test_a_judge_without_a_grade_is_a_failed_reward(rollout: Any, judge: str) -> None:
    policy = by_seed("7", "why?", "3", "9", "why not?")
    done = rollout({"llm-judge": {"url": judge}}, policy, on_reward_error="zero")
    assert [sample.reward for sample in done.groups[0]] == [0.7, 0.0, 0.3, 0.9]
    assert done.metrics["reward_errors/llm-judge/ValueError"] == 1


def test_only_right_answers_pay_for_their_length(rollout: Any) -> None:
    done = rollout({"length-penalty": {"weight": 0.5}}, by_seed("2", "2" + "0" * 18, "1", "1" * 19), rm=right)
    assert [sample.reward for sample in done.groups[0]] == [1 - 0.5 * 2 / 40, 1 - 0.5 * 20 / 40, 0.0, 0.0]


def test_groups_outside_the_bounds_are_replaced(rollout: Any) -> None:
    rows = [{"input": f"{number}=", "label": str(number)} for number in range(3)]
    policy = by_seed("0", "0", "0", "0", "x", "x", "x", "x", "2", "x", "2", "x")
    done = rollout({"pass-rate": {}}, policy, rows, right)
    assert [sample.prompt for sample in done.groups[0]] == ["2="] * 4
    assert {key: value for key, value in done.metrics.items() if "drop_" in key} == {
        "dynamic_filter/drop_solved": 1,
        "dynamic_filter/drop_too_hard": 1,
    }


@pytest.mark.parametrize(
    ("rewards", "reason"), [([1, 1, 1, 1], "solved"), ([1, 1, 1, 0], None), ([1, 0, 0, 0], None), ([0] * 4, "too_hard")]
)
def test_the_bounds_of_a_pass_rate_are_inside(cookbook: Any, rewards: list[float], reason: str | None) -> None:
    plugin = cookbook("pass-rate")(cookbook("pass-rate").Settings(low=0.25, high=0.75))
    verdict = plugin.dynamic_sampling_filter(RunConfig(), finished_group([float(reward) for reward in rewards]))
    assert (verdict.keep, verdict.reason) == (reason is None, reason)


@pytest.mark.parametrize(("cut", "removed"), [(1, 1), (3, 4)])
def test_cut_answers_leave_the_loss_and_take_their_group_along(rollout: Any, cut: int, removed: int) -> None:
    policy = by_seed(*["9" * 50] * cut, *["2"] * (4 - cut))
    done = rollout({"overlong-filter": {}}, policy, rm=right)
    assert sum(sample.remove_sample for sample in done.groups[0]) == removed
    assert sum(sample.status is Status.TRUNCATED for sample in done.groups[0]) == cut
    assert done.metrics["removed_samples"] == removed


def test_ranks_are_of_the_group(cookbook: Any) -> None:
    plugin = cookbook("rank-advantage")()
    samples = [*finished_group([0.1, 5.0, 0.1, -3.0], group_index=0), *finished_group([7.0, 7.0, None], group_index=1)]
    raw, shaped = plugin.post_process_rewards(RunConfig(), samples)
    assert raw == [0.1, 5.0, 0.1, -3.0, 7.0, 7.0, 0.0]
    assert shaped == [0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0]


def test_the_curriculum_climbs_when_the_sums_are_solved_and_goes_on_from_its_state(rollout: Any, cookbook: Any) -> None:
    def solve(tokens: Any, params: Any) -> str:
        return str(sum(map(int, FakeTokenizer().decode(tokens).rstrip("=").split("+"))))

    done = rollout({"curriculum": {}}, solve, rm=right)
    assert done.groups[0][0].prompt.count("+") == 1
    assert rollout.source.level == 2
    anew = cookbook("curriculum")(cookbook("curriculum").Settings()).make_data_source(RunConfig(n_samples_per_prompt=4))
    anew.load_state_dict(json.loads(json.dumps(rollout.source.state_dict())))
    assert anew.get_samples(1)[0][0].prompt == rollout.source.get_samples(1)[0][0].prompt
    assert anew.get_samples(1)[0][0].prompt.count("+") == 2
    assert rollout({"curriculum": {"start": 3}}, lambda tokens, params: "no", rm=right) and rollout.source.level == 3


def test_the_policy_looks_words_up_and_is_not_trained_on_the_reply(rollout: Any) -> None:
    policy = {"capital?": "<lookup>Peru</lookup>", "capital?<lookup>Peru</lookup>[Lima] ": "Lima"}
    rows = [{"input": "capital?", "label": "Lima"}]
    options = {"rollout_max_response_len": 60, "n_samples_per_prompt": 1}
    done = rollout({"lookup": {"table": {"peru": "Lima"}}}, policy, rows, lambda args, sample: sample.label in sample.response, **options)
    (sample,) = done.groups[0]
    assert sample.response == "<lookup>Peru</lookup>[Lima] Lima"
    assert sample.loss_mask == [1] * 21 + [0] * 7 + [1] * 5
    assert sample.reward == 1.0


def test_the_agent_is_told_higher_and_lower_and_rewarded_by_its_game(rollout: Any) -> None:
    rows = [{"input": "1 to 9:", "label": "6"}]
    assert rollout({"guess-agent": {}}, by_seed("6"), rows, n_samples_per_prompt=1).groups[0][0].reward == 1.0
    later = by_seed("3", "8", "6")
    done = rollout({"guess-agent": {}}, later, rows, n_samples_per_prompt=1)
    assert done.groups[0][0].response == "3\nhigher\n8\nlower\n6"
    assert done.groups[0][0].reward == 0.5
    assert rollout({"guess-agent": {}}, by_seed("9" * 99), rows, n_samples_per_prompt=1).groups[0][0].reward == 0.0


def test_the_loss_is_the_clipped_one_and_the_likelihood_of_what_did_better(cookbook: Any) -> None:
    torch = pytest.importorskip("torch")
    plugin = cookbook("imitation-loss")(cookbook("imitation-loss").Settings(weight=0.5))
    log_probs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    inputs = SimpleNamespace(
        log_probs=log_probs, old_log_probs=torch.tensor([-1.0, -3.0, -3.0]), advantages=torch.tensor([1.0, 1.0, -1.0]), reduce=torch.sum
    )
    loss, metrics = plugin.policy_loss(RunConfig(), inputs)
    assert loss.item() == pytest.approx(-(1.0 + 1.2 - 1.0) + 0.5 * (1.0 + 2.0))
    loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-1.0 - 0.5, 0.0 - 0.5, 1.0])
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(
        {"pg_loss": -1.2, "imitation_loss": 3.0, "better_tokens": 2 / 3}
    )


def test_categories_are_metrics_and_answers_go_into_a_file(rollout: Any, tmp_path: Path) -> None:
    file = tmp_path / "answers.txt"
    rows = [{"input": "1+1=", "label": "2", "metadata": {"category": "sums"}}, {"input": "0=", "label": "0"}]
    policy = by_seed("2", "2", "x", "x", "0", "x", "x", "x")
    done = rollout({"category-log": {"file": str(file)}}, policy, rows, right, rollout_batch_size=2)
    assert {key: value for key, value in done.metrics.items() if key.startswith("category")} == {
        "category/sums": 0.5,
        "category/other": 0.25,
    }
    assert not done.logged_by_plugin
    assert file.read_text() == "rollout 0  0  'x'\nrollout 0  1  '0'\n"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
