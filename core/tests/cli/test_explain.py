"""`vime plugin explain`: who is called by one training step, for sets of plugins, path functions and modes."""

from __future__ import annotations

import json

import pytest

from vime.cli.explain_rows import MOMENTS
from vime.plugins.hookspecs import HOOKS

NUM_GPUS = 0

API = "from vime.api import hookimpl\n\n"
PLUGINS = {
    "one": API + "@hookimpl\ndef custom_rm(sample):\n    return 1.0\n\n@hookimpl\ndef dynamic_sampling_filter(samples):\n    return True\n",
    "two": API + "@hookimpl\ndef custom_rm(samples):\n    return [1.0 for _ in samples]\n",
    "three": API + "@hookimpl\ndef dynamic_sampling_filter(samples):\n    return True\n",
    "roll": API + "@hookimpl\ndef generate_rollout(args):\n    pass\n\n@hookimpl\ndef importance_weights(args):\n    pass\n",
    "source": API + "@hookimpl\ndef make_data_source(args):\n    pass\n\n@hookimpl\ndef generate_rollout(args):\n    pass\n",
    "heavy": "import sys\nassert not {'torch', 'numpy', 'transformers'} & set(sys.modules)\n"
    + API
    + "@hookimpl\ndef shape_reward(sample): ...\n",
}
FUNCTIONS = """
def rm(args, sample, **kwargs): ...
def keep(args, samples, **kwargs): ...
def roll(args, rollout_id, data_source, evaluation=False): ...
def generate(args, sample, sampling_params): ...
"""


DATASETS = """
datasets:
- {name: a, path: a.jsonl}
- {name: b, path: b.jsonl, custom_rm_path: fns.rm, custom_generate_function_path: "fns:generate"}
- {name: c, path: c.jsonl, rm_type: two}
"""


@pytest.fixture(scope="module")
def shop(shared_zoo):
    for name, source in PLUGINS.items():
        shared_zoo.add(name, source)
    (shared_zoo.site.parent / "fns.py").write_text(FUNCTIONS)
    (shared_zoo.site.parent / "eval.yaml").write_text(DATASETS)
    return shared_zoo


def explained(shop, *words: str, **env: str) -> list[dict]:
    done = shop.vime_here("plugin", "explain", "--json", "--model", "m", "--prompt-data", "p.jsonl", "--label-key", "l", *words, **env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["hooks"]


def who(row: dict) -> list[str]:
    return [who.get("plugin") or f"{who['path']} by {who['flag']}" for who in row["who"]]


def row_of(rows: list[dict], hook: str, phase: str | None = None, dataset: str | None = None) -> dict:
    (row,) = [
        row
        for row in rows
        if row["hook"] == hook and row["dataset"] == dataset and (row["phase"] == "evaluation") == (phase == "evaluation")
    ]
    return row


def test_every_hook_has_its_moment_in_the_order_of_a_step(shop):
    assert list(MOMENTS) == list(HOOKS)
    rows = explained(shop, "--plugin", "one")
    assert [row["hook"] for row in rows[:-1]] == [hook for hook in HOOKS if hook != "log_eval_rollout_data"]
    assert rows[-1]["hook"] == "log_eval_rollout_data" and rows[-1]["called"] == "never"


def test_the_order_is_the_users_and_path_functions_come_last(shop):
    words = ["--plugin", "three", "--dynamic-sampling-filter-path", "fns.keep", "--plugin", "one"]
    row = row_of(explained(shop, *words), "dynamic_sampling_filter")
    assert who(row) == ["three", "one", "fns.keep by --dynamic-sampling-filter-path"]
    assert (row["kind"], row["called"], row["phase"]) == ("agree", "once a group", "filter")


@pytest.mark.parametrize(
    ("words", "env", "enabled"),
    [
        ([], "", []),
        (["--config", "run.yaml"], "", ["three", "one"]),
        (["--config", "run.yaml"], "three", ["three"]),
        (["--config", "run.yaml", "--plugin", "one"], "three", ["one"]),
        (["--config", "run.yaml", "--no-plugin", "three"], "", ["one"]),
    ],
)
def test_the_sources_of_plugins_are_those_of_a_run(shop, words, env, enabled):
    (shop.site.parent / "run.yaml").write_text("plugins: [three, one]\n")
    done = shop.vime_here("plugin", "explain", "--json", *words, VIME_PLUGINS=env)
    assert [plugin["plugin"] for plugin in json.loads(done.stdout)["plugins"]] == enabled, done.stderr


@pytest.mark.parametrize(
    ("words", "chosen", "called", "note"),
    [
        (["--plugin", "one"], ["one"], "once a sample", "the only plugin with a reward"),
        (["--plugin", "one", "--plugin", "two", "--group-rm", "--rm-type", "two"], ["two"], "once a group", "--rm-type two"),
        (["--plugin", "one", "--rm-type", "boxed_one"], ["one"], "once a sample", "--rm-type boxed_one"),
        (
            ["--plugin", "one", "--plugin", "two", "--group-rm", "--rm-type", "boxed_one+two", "--reward-weights", "two=-0.5"],
            ["one", "two"],
            "once a group or sample",
            "--rm-type boxed_one+two: total = 1 boxed_one - 0.5 two",
        ),
        (
            ["--plugin", "one", "--custom-rm-path", "./fns.py:rm"],
            ["./fns.py:rm by --custom-rm-path"],
            "once a sample",
            "goes before rm_type",
        ),
        (["--plugin", "three"], [], "once a sample", "vime train refuses this: training: no reward"),
    ],
)
def test_how_samples_are_routed_to_rewards(shop, words, chosen, called, note):
    row = row_of(explained(shop, *words), "custom_rm")
    assert (who(row), row["called"]) == (chosen, called) and note in row["notes"][0]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--plugin", "one", "--plugin", "two", "--group-rm"], "several enabled plugins score samples", "choose one: --rm-type one"),
        (["--plugin", "one", "--rm-type", "one+f2"], "no enabled plugin answers to rm_type 'f2'", ""),
        (
            ["--plugin", "one", "--rm-type", "one", "--reward-weights", "one=2"],
            "--reward-weights is set, but --rm-type one is one reward",
            "",
        ),
        (["--plugin", "one", "--reward-weights", "one"], "expected NAME=NUMBER,NAME=NUMBER, got 'one'", "math=1,format=0.2"),
        (["--plugin", "two"], "its custom_rm takes `samples` only", "add --group-rm"),
        (["--plugin", "roll", "--plugin", "source"], "both implement generate_rollout", "leave one of them out: --no-plugin source"),
        (["--plugin", "one", "--rm-type", "math2"], "no enabled plugin answers to rm_type 'math2'", ""),
        (["--plugin", "one", "--set", "one.x=1"], "plugin 'one' (vime-zoo-one 1.0): it takes no settings", "remove them"),
        (["--custom-rm-path", "fns.mr"], "--custom-rm-path fns.mr: module fns has no 'mr'; it offers rm, keep", ""),
        (["--plugin", "one", "--lrr", "1"], "unknown flag --lrr", "did you mean --lr?"),
        (["--plugin", "one", "--jsn"], "unknown flag --jsn", "did you mean --json?"),
        (["one"], "vime plugin explain one: plugins are named by flags", "vime plugin explain --plugin one"),
        (["--plugin", "one", "--no-plugin", "nosuch"], "--no-plugin nosuch: there is no plugin of this name", ""),
    ],
)
def test_what_a_run_would_be_refused_with(shop, words, message, hint):
    done = shop.vime_here("plugin", "explain", *words)
    first, *rest = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "") and first.startswith("error: ") and message in first
    assert len(rest) <= 1 and (not hint or hint in rest[0])


def test_the_parts_of_a_sum_are_named_as_such(shop):
    words = ["--plugin", "one", "--plugin", "two", "--group-rm", "--rm-type", "one+two"]
    text = shop.vime_here("plugin", "explain", *words).stdout
    assert "1. one (vime-zoo-one 1.0)" in text and "2. two (vime-zoo-two 1.0)" in text and "(side by side)" in text


def test_a_rollout_of_ones_own_calls_what_it_wants(shop):
    rows = explained(shop, "--plugin", "roll", "--plugin", "one")
    assert who(row_of(rows, "generate_rollout")) == ["roll"]
    inner = row_of(rows, "dynamic_sampling_filter")
    assert inner["called"] == "where asked for" and "only where generate_rollout of plugin 'roll'" in inner["reason"]
    assert row_of(rows, "rollout_sample_filter")["called"] == "once a rollout"


def test_a_path_function_goes_before_a_plugin(shop):
    words = ["--plugin", "roll", "--plugin", "source", "--rollout-function-path", "fns.roll", "--eval-function-path", "fns:roll"]
    rows = explained(shop, *words, "--eval-prompt-data", "a", "a.jsonl")
    row = row_of(rows, "generate_rollout")
    assert who(row) == ["fns.roll by --rollout-function-path"] and len(row["notes"]) == 2
    assert who(row_of(rows, "generate_rollout", "evaluation")) == ["fns:roll by --eval-function-path"]
    assert row_of(rows, "buffer_filter")["called"] == "never" and who(row_of(rows, "make_data_source")) == ["source"]


def test_a_function_for_evaluation_without_a_dataset(shop):
    rows = explained(shop, "--plugin", "one", "--eval-function-path", "fns.roll")
    row = row_of(rows, "generate_rollout", "evaluation")
    assert (who(row), row["called"]) == (["fns.roll by --eval-function-path"], "never") and "no evaluation dataset" in row["reason"]


def test_the_built_in_rollout_by_its_path_is_the_built_in_one(shop):
    rows = explained(shop, "--plugin", "roll", "--plugin", "one", "--rollout-function-path", "vime.rollout.vllm_rollout.generate_rollout")
    assert [note.split(",")[0] for note in row_of(rows, "generate_rollout")["notes"]] == ["not called: plugin 'roll' (vime-zoo-roll 1.0)"]
    assert row_of(rows, "generate_rollout")["who"] == [] and row_of(rows, "custom_rm")["called"] == "once a sample"


def test_what_a_dataset_names_itself(shop):
    rows = explained(shop, "--plugin", "one", "--plugin", "two", "--rm-type", "one", "--group-rm", "--eval-config", "eval.yaml")
    assert "datasets: a, b, c;" in row_of(rows, "generate_rollout", "evaluation")["notes"][0]
    assert [(row["hook"], row["dataset"]) for row in rows if row["dataset"]] == [
        ("custom_generate", "b"),
        ("custom_rm", "b"),
        ("custom_rm", "c"),
    ]
    assert who(row_of(rows, "custom_rm", "evaluation", "b")) == ["fns.rm by custom_rm_path of the dataset"]
    assert who(row_of(rows, "custom_rm", "evaluation", "c")) == ["two"]


def test_a_run_that_only_evaluates(shop):
    words = ["--plugin", "one", "--num-rollout", "0", "--eval-prompt-data", "a", "a.jsonl"]
    rows = explained(shop, *words)
    assert {row["called"] for row in rows if row["phase"] != "evaluation"} == {"never"}
    assert who(row_of(rows, "custom_rm", "evaluation", "a")) == ["one"]
    text = shop.vime_here("plugin", "explain", *words).stdout
    assert "make_data_source" not in text and "custom_rm [a]" in text


def test_hooks_that_need_a_flag(shop):
    row = row_of(explained(shop, "--plugin", "roll"), "importance_weights")
    assert (who(row), row["called"]) == (["roll"], "never") and "--use-tis" in row["reason"]
    assert row_of(explained(shop, "--plugin", "roll", "--use-tis"), "importance_weights")["called"] == "once a micro-batch"


def test_nothing_heavy_is_imported_and_nothing_of_it_here(shop):
    assert who(row_of(explained(shop, "--plugin", "heavy"), "shape_reward")) == ["heavy"]


def test_the_text(shop):
    text = shop.vime_here("plugin", "explain", "--plugin", "three", "--plugin", "one", "--model", "m", "--prompt-data", "p").stdout
    for part in (
        "enabled, in the order of calls: 1. three (vime-zoo-three 1.0)  2. one (vime-zoo-one 1.0)\n\ndata\n",
        "make_data_source                once, at the start      built in: the rows of --prompt-data",
        "dynamic_sampling_filter         once a group            1. three (vime-zoo-three 1.0)\n",
        " 2. one (vime-zoo-one 1.0)\n",
        "(all must agree, in this order)",
        "shape_reward                    once a sample           nobody\n",
        "policy_loss                     never                   nobody: needs --loss-type custom_loss\n",
    ):
        assert part in text, (part, text)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
