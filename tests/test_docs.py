"""What the README and the pages of docs/ show works as shown."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from vime.api import RolloutFnEvalOutput, Sample, Status
from vime.cli.app import main
from vime.config.eval import FLAGS, EvalDatasetConfig
from vime.config.names import ALIASES
from vime.config.run_config import RunConfig
from vime.config.upstream import REWARD_DISTRIBUTIONS
from vime.plugins.hookspecs import HOOKS
from vime.plugins.manager import ROUTED, PluginManager
from vime.rollout.evaluate import eval_metrics
from vime.testing import check
from vime.track.alerts import AlertWatch

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "core" / "README.md",
    *DOCS,
]

CHECK_FLAGS = {"hook", "arg", "cases", "nondeterministic", "only", "timeout"}
"""Flags of `vime plugin check`."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def table(page: Path, header: str) -> list[list[str]]:
    """The cells of every row of the table whose head begins with `| header |`; `\\|` is a bar within a cell."""
    body = page.read_text(encoding="utf-8").partition(f"| {header} |")[2]
    rows = body.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def codes(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def run_block(source: str, names: dict[str, Any]) -> int:
    """Run a block; the value of an expression that a comment follows must be what that says. Returns the number of these."""
    lines, compared = source.splitlines(), 0
    for statement in ast.parse(source).body:
        assert statement.end_lineno is not None
        code = "\n".join(lines[(first_line(statement) - 1) : statement.end_lineno])
        if not isinstance(statement, ast.Expr):
            exec(compile(code, "<page>", "exec"), names)
            continue
        value = eval(compile(code, "<page>", "eval"), names)
        shown = []
        for line in lines[statement.end_lineno :]:
            if not line.startswith("# "):
                break
            shown.append(line.removeprefix("# "))
        if shown:
            assert repr(value) == "\n".join(shown), code
            compared += 1
    return compared


def first_line(statement: ast.stmt) -> int:
    return min([statement.lineno, *(decorator.lineno for decorator in getattr(statement, "decorator_list", []))])


def plugin_module(page: str, tmp_path: Path) -> ModuleType:
    """The one plugin that a page shows, as a module."""
    (source,) = [block for block in blocks(ROOT / page, "python") if "@hookimpl" in block]
    path = tmp_path / "shown_plugin.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("shown_plugin", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(text: str, label: Any = None, reward: float | None = None) -> Sample:
    return Sample(group_index=0, index=0, prompt="1+1=", response=text, label=label, reward=reward)


@pytest.mark.parametrize("page", ["README.md", "core/README.md"])
def test_the_plugin_of_the_readme_rewards_the_right_answer(page: str, tmp_path: Path) -> None:
    plugin = PluginManager().add(plugin_module(page, tmp_path), name="exact-match")
    assert plugin.hooks["custom_rm"].call(args=RunConfig(), sample=answer(" 2\n", label=2)) == 1.0
    assert plugin.hooks["custom_rm"].call(args=RunConfig(), sample=answer("3", label=2)) == 0.0


def test_the_plugin_of_the_plugin_page_drops_groups_out_of_range(tmp_path: Path) -> None:
    target = plugin_module("docs/plugins.md", tmp_path).RewardRange
    keep = PluginManager().add(target, name="reward-range", settings={"high": 0.8}).hooks["dynamic_sampling_filter"]
    assert keep.call(args=RunConfig(), samples=[answer("a", reward=1.0), answer("b", reward=0.0)]).keep
    dropped = keep.call(args=RunConfig(), samples=[answer("a", reward=1.0), answer("b", reward=0.9)])
    assert (dropped.keep, dropped.reason) == (False, "mean_out_of_range")


def test_the_filter_of_the_plugin_page_passes_its_checks(tmp_path: Path) -> None:
    report = check(plugin_module("docs/plugins.md", tmp_path).RewardRange)
    assert report.passed, report.failures


def test_the_two_turns_of_the_plugin_page_pass_their_checks(tmp_path: Path) -> None:
    (source,) = [block for block in blocks(ROOT / "docs" / "plugins.md", "python") if "two_turns" in block]
    path = tmp_path / "shown_turns.py"
    path.write_text(source, encoding="utf-8")
    report = check(f"{path}:two_turns", hook="custom_generate")
    assert report.passed, report.failures


def test_links_between_the_pages_resolve() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\((?!https?://)([^)\s]+)", page.read_text(encoding="utf-8"))]
    assert len(links) > 20
    broken: list[str] = []
    for page, link in links:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_names_every_page() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    assert linked == {str(page.relative_to(ROOT / "docs")) for page in DOCS} - {"index.md"}


def test_every_flag_on_the_pages_exists() -> None:
    fields = {name.replace("_", "-") for name in (*RunConfig.model_fields, *ALIASES)}
    elsewhere = {
        "set",
        "config",
        "help",
        "json",
        "probe",
        "traceback",
        "import-timeout",
        "kind",
        "check",
        "model",
        "checkpoints",
        "out",
        "once",
        "seed",
        "strict",
    }
    unknown: set[str] = set()
    for page in PAGES:
        text = re.sub(r"(?s)<!-- (?:gone|backend|names) -->.*?<!-- end -->", "", page.read_text(encoding="utf-8"))  # flags of others
        for line in text.splitlines():
            if "uv pip" in line or "uv build" in line or ".py --" in line:
                continue
            unknown |= (
                {flag.removeprefix("no-") for flag in re.findall(r"(?<![\w-])--([a-z][a-z-]+)", line)} - fields - elsewhere - CHECK_FLAGS
            )
    assert unknown == set()


def test_the_readme_has_the_two_commands() -> None:
    commands = [line for block in blocks(ROOT / "README.md", "bash") for line in block.splitlines()]
    assert "pip install uv && uv run vime train --plugin math" in commands
    assert "uv run pytest" in commands
    assert "uv run pytest" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


# Every page of docs/


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_the_python_on_a_page_runs_and_gives_the_values_it_shows(page: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        if "import torch" not in block or importlib.util.find_spec("torch") is not None:
            run_block(block, names)


def test_a_value_that_is_shown_wrong_is_noticed() -> None:
    assert run_block("x = 1\nx + 1\n# 2\nx\n", {}) == 1
    with pytest.raises(AssertionError):
        run_block("1 + 1\n# 3\n", {})


# The page of plugins


def test_the_plugin_page_has_every_hook_with_its_kind_and_its_checks() -> None:
    page = ROOT / "docs" / "plugins.md"
    kinds = {"one claims": "one", "routed": "one", "all must agree": "agree", "all are called": "all"}
    rows = {row[0]: set(codes(row[1])) for row in table(page, "kind")}
    assert rows["routed"] == {ROUTED}
    for words, kind in kinds.items():
        expected = {name for name, info in HOOKS.items() if info.kind == kind and (name == ROUTED) == (words == "routed")}
        assert rows[words] == expected, words
    assert sorted(name for row in table(page, "hook") for name in codes(row[0])) == sorted(HOOKS)


def test_the_imports_of_upstream_on_the_plugin_page_resolve() -> None:
    rows = table(ROOT / "docs" / "plugins.md", "import")
    assert len(rows) == 8
    for module, names in rows:
        assert all(hasattr(importlib.import_module(codes(module)[0]), name) for name in codes(names)), module


# The reference of Sample


def test_the_reference_of_sample_has_every_field_with_its_type_and_default() -> None:
    page = ROOT / "docs" / "sample.md"
    rows = {codes(row[0])[0]: row for row in table(page, "field")}
    assert list(rows) == [field.name for field in dataclasses.fields(Sample)]
    fresh = Sample()
    for field in dataclasses.fields(Sample):
        _, kind, default, meaning = rows[field.name]
        assert codes(kind) == [field.type], field.name
        assert eval(codes(default)[0], {"Status": Status}) == getattr(fresh, field.name), field.name
        assert meaning, field.name
    assert [codes(row[0]) for row in table(page, "status")] == [[status.name] for status in Status]


# Algorithms


def test_the_page_of_algorithms_has_every_estimator_kl_type_level_and_mode() -> None:
    page = ROOT / "docs" / "algorithms.md"
    fields = RunConfig.model_fields
    for header, field in {"estimator": "advantage_estimator", "type": "kl_loss_type", "value": "loss_aggregation"}.items():
        assert {codes(row[0])[0] for row in table(page, header)} == set(get_args(fields[field].annotation)), field
    shown = {codes(row[1])[0] for row in table(page, "flag")}
    assert shown == {*get_args(fields["tis_level"].annotation), *get_args(fields["tis_mode"].annotation)}


def test_the_page_of_algorithms_has_every_metric_of_the_correction() -> None:
    pytest.importorskip("torch")
    import torch

    from vime.train.corrections import MODES, correction

    shown = {name.removeprefix("train/") for row in table(ROOT / "docs" / "algorithms.md", "metric") for name in codes(row[0])}
    one, row = torch.zeros(1), torch.zeros(1, dtype=torch.long)
    for mode in MODES:
        assert set(correction(one, one, row, 1, low=0.5, high=2.0, level="token", mode=mode)[1]) <= shown


# Rewards


def test_the_commands_of_the_page_on_rewards_work(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [line.split() for block in blocks(ROOT / "docs" / "rewards.md", "bash") for line in block.splitlines()]
    assert len(commands) >= 2
    monkeypatch.chdir(ROOT)
    for vime, *words in commands:
        assert vime == "vime"
        flags = words[words.index("explain" if "explain" in words else "train") + 1 :]
        assert main(["plugin", "explain", *flags]) == 0, words
        assert flags[flags.index("--rm-type") + 1].split("+")[0] in capsys.readouterr().out


def test_the_file_of_the_page_on_rewards_names_a_sum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = blocks(ROOT / "docs" / "rewards.md", "yaml")
    (tmp_path / "run.yaml").write_text(source)
    assert main(["config", "show", "--json", "--config", str(tmp_path / "run.yaml")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["reward_key"]["value"], shown["reward_weights"]["value"]) == ("total", {"boxed_math": 1.0, "format": 0.2})


def test_the_page_on_rewards_has_every_reward_that_upstreams_names_lead_to() -> None:
    rows = {codes(row[0])[0]: row[2] for row in table(ROOT / "docs" / "rewards.md", "plugin")}
    assert rows == REWARD_DISTRIBUTIONS


# Metrics


def test_the_metrics_page_has_each_alert() -> None:
    assert len(table(ROOT / "docs" / "metrics.md", "alert")) == len(AlertWatch()._rules)


# Evaluation


def test_the_file_of_the_evaluation_page_is_read_as_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = blocks(ROOT / "docs" / "evaluation.md", "yaml")
    file = tmp_path / "eval.yaml"
    file.write_text(source)
    assert main(["config", "show", "--json", "--model", "m", "--plugin", "math", "--eval-config", str(file), "--eval-top-p", "0.9"]) == 0
    shown = json.loads(capsys.readouterr().out)["eval_datasets"]
    values = {name: {key: setting["value"] for key, setting in settings.items()} for name, settings in shown.items()}
    assert list(values) == ["gsm8k", "competition"]
    first, second = values["gsm8k"], values["competition"]
    assert (first["temperature"], first["max_response_len"], first["n_samples_per_eval_prompt"], first["top_p"]) == (0, 1024, 1, 0.9)
    assert (second["temperature"], second["max_response_len"], second["n_samples_per_eval_prompt"]) == (0.7, 1024, 8)
    assert second["rm_type"] == "math" and second["metadata_overrides"] == {"level": 5}


def test_the_evaluation_page_has_every_setting_with_its_flags() -> None:
    rows = {codes(row[0])[0]: codes(row[1]) for row in table(ROOT / "docs" / "evaluation.md", "setting")}
    assert set(rows) == set(EvalDatasetConfig.model_fields) - {"name", "path"}
    for setting, flags in rows.items():
        assert [flag.removeprefix("--").replace("-", "_") for flag in flags] == list(FLAGS.get(setting, ())), setting


def test_the_evaluation_page_has_every_metric() -> None:
    shown = {codes(row[0])[0].removeprefix("eval/") for row in table(ROOT / "docs" / "evaluation.md", "metric")}
    short = {name for name in shown if "{" in name}
    expanded = {name.partition("{")[0] + end for name in short for end in ("mean", "median", "max", "min")} | (shown - short)
    samples = [Sample(response_length=3, reward={"KEY": 1.0}, status=Status.COMPLETED) for _ in range(4)]
    output = RolloutFnEvalOutput({"NAME": {"rewards": [1.0] * 4, "truncated": [False] * 4, "samples": samples}})
    metrics = {re.sub(r"@\d+", "@k", name) for name in eval_metrics(RunConfig(), output, {"NAME": 2})}
    assert expanded == metrics


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
