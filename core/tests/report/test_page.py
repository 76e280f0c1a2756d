"""The page's data and its HTML, without a browser: what is chosen, what is hidden, and that hostile text stays text."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import re
from pathlib import Path

import pytest

from vime.cli.app import main
from vime.errors import ConfigError
from vime.report.page import report_at_end, report_data, write_report
from vime.report.runs import collect_curves, find_run, run_folders, totals
from vime.report.samples import clipped, groups_by_interest, reward_number, sample_files, shown_samples, spread_files, token_detail
from vime.sample import Sample, note_verdict
from vime.track.samples import write_samples

pytest.importorskip("pyarrow")

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[2]


class Messages:
    """Stands where a run has its console."""

    def __init__(self):
        self.infos, self.warnings = [], []

    def info(self, text):
        self.infos.append(text)

    def warn(self, text):
        self.warnings.append(text)


def embedded(page):
    """What the page's script will read."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(text)


# Curves and counts


def test_curves_have_a_gap_where_a_step_has_no_value():
    lines = [{"step": 0, "time": 1.0, "eval/x": 1.0}, {"step": 0, "time": 2.0, "a/b": 2}, {"step": 2, "a/b": 1 / 3, "a/flag": True}]
    curves = collect_curves(lines)
    assert curves.steps == [0, 2] and curves.each == 1
    assert curves.series == {"a/b": [2, 0.33333], "eval/x": [1, None]}


def test_long_curves_are_means_and_say_of_how_many():
    curves = collect_curves([{"step": step, "a/b": step} for step in range(25)], max_points=10)
    assert (curves.each, curves.steps[:3], curves.series["a/b"][:2], curves.series["a/b"][-1]) == (3, [0, 3, 6], [1, 4], 24)


def test_counts_and_times_are_added_up_and_means_are_not():
    lines = [{"step": step, "rollout/samples_trained": 3, "rollout/raw_reward": 0.5, "perf/overhead_fraction": 0.1} for step in range(4)]
    lines.append({"step": 4, "hooks/math/custom_rm_ms": 2.5, "rollout/reward_errors/math/ValueError": 2})
    assert totals(lines) == {"hooks/math/custom_rm_ms": 2.5, "rollout/reward_errors/math/ValueError": 2, "rollout/samples_trained": 12}


def test_runs_are_named_by_what_tells_them_apart(tmp_path, monkeypatch):
    for name in ("a/run", "b/run", "runs/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert list(run_folders([Path("a/run")])) == ["run"]
    assert list(run_folders([Path("a/run"), Path("b/run")])) == ["a/run", "b/run"]
    assert find_run(Path("c")) == tmp_path / "runs" / "c"
    with pytest.raises(ConfigError, match=r"empty has no metrics\.jsonl"):
        find_run(Path("empty"))
    with pytest.raises(ConfigError, match="there is no run d") as caught:
        find_run(Path("d"))
    assert caught.value.hint == "runs here: c"
    with pytest.raises(ConfigError, match="named twice"):
        run_folders([Path("a/run"), Path("a/../a/run")])


# Samples


def test_sample_files_are_spread_over_the_run(tmp_path):
    for step in range(100):
        (tmp_path / f"train_{step:06d}.parquet").touch()
        (tmp_path / f"eval_a_b_{step:06d}.parquet").touch()
    (tmp_path / "notes.parquet").touch()
    (tmp_path / "eval_math%2Faime_000000.parquet").touch()
    picked = spread_files(sample_files(tmp_path))
    train = [file.step for file in picked if file.split == "train"]
    assert len(train) == 40 and train[0] == 0 and train[-1] == 99 and max(b - a for a, b in itertools.pairwise(train)) <= 3
    assert [(file.split, file.step) for file in picked if file.split != "train"] == [
        ("eval_a_b", 0),
        ("eval_a_b", 50),
        ("eval_a_b", 99),
        ("eval_math/aime", 0),
    ]


def test_everything_is_shown_where_it_fits(run_folder):
    shown = shown_samples(run_folder, 10_000_000)
    assert (shown.shown, shown.total, shown.rollouts_shown, shown.rollouts_total) == (124, 124, 6, 6)
    assert [group["split"] for group in shown.groups] == ["train"] * 30 + ["eval_held"] * 2
    verdicts = {sample["verdict"] for group in shown.groups for sample in group["samples"]}
    assert verdicts == {"trained", "removed", "zero_std_0.0", "failed", "evaluated"}


def test_a_small_budget_keeps_whole_groups_of_every_rollout_and_kind(run_folder):
    shown = shown_samples(run_folder, 14_000)
    assert 0 < shown.shown < shown.total == 124
    assert shown.rollouts_shown == 6
    assert all(len(group["samples"]) == 4 for group in shown.groups if group["split"] == "train")
    assert len(json.dumps(shown.groups)) <= 14_000
    first = groups_by_interest(_rows(run_folder), sample_files(run_folder / "samples")[-1], None)
    kinds = [{(row["status"], row["drop_reason"]) for row in group} for group in first[:4]]
    assert {("failed", "failed")} in kinds and {("completed", "zero_std_0.0")} in kinds


def _rows(folder):
    import pyarrow.parquet

    return pyarrow.parquet.read_table(folder / "samples" / "train_000005.parquet").to_pylist()


def test_tokens_have_what_the_file_knows(run_folder):
    kept, *_ = _rows(run_folder)
    assert token_detail(kept) == {
        "texts": ["one", "\n<b>", " two"],
        "log_probs": [-0.1, -1, -3],
        "differences": [0, -0.5, 0.5],
        "advantage": -0.25,
    }
    dropped = _rows(run_folder)[12]
    assert token_detail(dropped) == {"texts": ["one", "\n<b>", " two"], "log_probs": [-0.1, -1, -3]}
    assert token_detail({"token_texts": None}) is None and token_detail({}) is None
    tool = {"token_texts": ["a", "b"], "loss_mask": [1, 0], "log_probs": None, "advantages": [1.0, float("nan")]}
    assert token_detail(tool) == {"texts": ["a", "b"], "advantage": 1, "mask": [1, 0]}
    assert token_detail({**tool, "advantages": [1.0, -0.5]})["advantages"] == [1, -0.5]


def test_long_texts_lose_their_middle():
    text = clipped("a" * 100 + "b" * 100, 100)
    assert text.startswith("a" * 75) and text.endswith("b" * 25) and "[… 100 characters left out …]" in text
    assert clipped("short", 100) == "short"


def test_rewards_out_of_dicts():
    assert reward_number('{"acc": 1, "len": 0.5}', "acc") == 1
    assert [reward_number(value, "acc") for value in ('{"len": 1}', '{"acc": NaN}', "no json", None, float("nan"))] == [None] * 5
    assert reward_number("0.5", None) == 0.5


def test_a_run_without_samples_says_so(tmp_path):
    assert "wrote no samples" in str(shown_samples(tmp_path, 1000).note)


# The page


def test_hostile_text_stays_inside_its_string(run_folder, tmp_path):
    page = write_report([run_folder], tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.lower().count("<script") == 2 and page.lower().count("</script") == 2 and "onerror" in page and "<img" not in page
    (run,) = embedded(page)["runs"]
    texts = [sample["text"] for group in run["samples"]["groups"] for sample in group["samples"]]
    assert any(text.startswith("</script><script>document.title") and text.endswith("& \u2028 end") for text in texts)


def test_a_folder_name_stays_text(run_folder, tmp_path):
    copy = tmp_path / "<i>x"
    copy.mkdir()
    (copy / "metrics.jsonl").write_bytes((run_folder / "metrics.jsonl").read_bytes())
    page = write_report([copy]).read_text(encoding="utf-8")
    assert "<title>&lt;i&gt;x · vime report</title>" in page and "<i>x" not in page


def test_nothing_is_loaded_and_nothing_secret_is_in_it(run_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("VIME_TEST_TOKEN", "hidden-value-of-the-environment")
    page = write_report([run_folder], tmp_path / "r.html").read_text(encoding="utf-8")
    for secret in ("hidden-value", "s3cret", "somebody", "rm_url", str(tmp_path), str(run_folder.parent)):
        assert secret not in page, secret
    assert embedded(page)["runs"][0]["about"] == {"model": "org/tiny", "plugins": "math 0.1.0", "learning rate": "0.0001"}
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    assert not re.search(r'(?:src|href)="(?!#)', page) and "@import" not in page and "url(" not in page


def test_the_page_stays_small(run_folder, tmp_path, monkeypatch):
    limit = write_report([run_folder], tmp_path / "r.html").stat().st_size - 20_000
    monkeypatch.setattr("vime.report.page.MAX_BYTES", limit)
    path = write_report([run_folder], tmp_path / "r.html")
    assert limit / 2 < path.stat().st_size <= limit + 1000
    samples = embedded(path.read_text(encoding="utf-8"))["runs"][0]["samples"]
    assert 0 < samples["shown"] < samples["total"]


def test_several_runs_share_a_page(run_folder, second_run):
    data = report_data(run_folders([run_folder, second_run]))
    assert [run["name"] for run in data["runs"]] == ["first", "second"]
    assert [run["rollouts"] for run in data["runs"]] == [6, 4]
    assert [[alert["kind"] for alert in run["alerts"]] for run in data["runs"]] == [[], ["truncation"]]


def test_the_report_at_the_end_warns_and_goes_on(run_folder, tmp_path):
    console = Messages()
    (tmp_path / "metrics.jsonl").touch()
    report_at_end(tmp_path, console)
    assert (console.infos, console.warnings, (tmp_path / "report.html").exists()) == ([], [], False)
    (tmp_path / "metrics.jsonl").write_bytes((run_folder / "metrics.jsonl").read_bytes())
    (tmp_path / "report.html").mkdir()
    report_at_end(tmp_path, console)
    (warning,) = console.warnings
    assert "the report was not written: " in warning and f"vime report {tmp_path} tries again" in warning
    (tmp_path / "report.html").rmdir()
    report_at_end(tmp_path, console)
    assert console.infos == [f"report: {tmp_path / 'report.html'}"]


def test_the_command_writes_where_it_is_told(run_folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", str(run_folder), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n" and out.stat().st_size > 100_000
    assert main(["report", str(run_folder), "--out", str(tmp_path / "no" / "page.html")]) == 2
    assert "choose another place: --out FILE" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nothing")]) == 2
    assert main(["report"]) == 2


def test_a_torn_run_folder_is_shown_as_far_as_it_goes(run_folder, tmp_path):
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines[:4]) + '\n{"step": 1, "tra')
    (tmp_path / "config.yaml").write_text(": [")
    (run,) = report_data({"torn": tmp_path})["runs"]
    assert (run["rollouts"], run["about"], run["samples"]["shown"]) == (1, {}, 0)
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "train_000000.parquet").write_text("no parquet")
    (run,) = report_data({"torn": tmp_path})["runs"]
    assert run["samples"]["unreadable"] == ["train_000000.parquet"]


def test_the_plotting_library_is_what_it_says():
    path = ROOT / "vendor" / "fetch_uplot.py"
    spec = importlib.util.spec_from_file_location("fetch_uplot", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, digest in module.SHA256.items():
        assert hashlib.sha256((module.ASSETS / name).read_bytes()).hexdigest() == digest, name
    assert f"(v{module.VERSION})" in (module.ASSETS / "uPlot.iife.min.js").read_text(encoding="utf-8")[:100]


def test_a_sample_says_what_each_hook_made_of_it(tmp_path):
    samples = [Sample(group_index=0, index=0, prompt="p", response="r", reward=1.0), Sample(group_index=0, index=1, prompt="p", reward=0.0)]
    note_verdict(samples[:1], "custom_rm", "math", "1")
    note_verdict(samples[:1], "dynamic_sampling_filter", "nonzero-std", "drop: zero_std")
    write_samples(tmp_path / "samples", 0, "train", [samples])
    (group,) = shown_samples(tmp_path, 100_000, None).groups
    assert group["samples"][0]["hooks"] == "math (custom_rm): 1; nonzero-std (dynamic_sampling_filter): drop: zero_std"
    assert "hooks" not in group["samples"][1]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
