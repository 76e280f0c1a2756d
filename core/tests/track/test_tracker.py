"""metrics.jsonl, TensorBoard and sample files: what is written, what is refused, and that nothing of it ends a run."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from vime.redact import Redactor
from vime.rollout.runner import Rollout
from vime.runtime.step import Step
from vime.sample import Sample, Status
from vime.track.console import Console
from vime.track.jsonl import JsonlWriter, read_metrics
from vime.track.run_dir import RunDir
from vime.track.samples import TokenValues, remove_after, samples_path, token_texts, write_samples
from vime.track.tracker import Tracker

NUM_GPUS = 0


def _tracker(tmp_path, tensorboard=False):
    console = Console(file=io.StringIO(), terminal=False)
    return Tracker(RunDir(tmp_path, tmp_path / "checkpoints"), SimpleNamespace(tensorboard=tensorboard), console), console


def _lines(tmp_path):
    return [{key: value for key, value in line.items() if key != "time"} for line in read_metrics(tmp_path / "metrics.jsonl")]


def _output(console):
    return console._rich.file.getvalue()


def test_a_line_per_namespace_and_step_is_there_at_once(tmp_path):
    tracker, _ = _tracker(tmp_path)
    tracker.log(0, "train", {"loss": 0.5, "steps": 3, "flag": True})
    tracker.log(0, "rollout", {"rollout/raw_reward": 1, "response_len/mean": 4.5})
    assert _lines(tmp_path) == [
        {"step": 0, "train/loss": 0.5, "train/steps": 3, "train/flag": 1},
        {"step": 0, "rollout/raw_reward": 1, "rollout/response_len/mean": 4.5},
    ]
    first = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert list(first)[:2] == ["step", "time"]
    assert isinstance(first["time"], float)
    tracker.close()


def test_only_finite_numbers_and_one_warning_a_key(tmp_path):
    tracker, console = _tracker(tmp_path)
    for step in range(3):
        tracker.log(step, "train", {"loss": math.nan, "kl": -math.inf, "name": "x", "ok": 1.0, "list": [1, 2]})
    tracker.log(3, "train", {"loss": math.nan})
    assert _lines(tmp_path) == [{"step": step, "train/ok": 1.0} for step in range(3)]
    assert _output(console).count("metric train/loss is not finite") == 1
    assert _output(console).count("metric train/kl is not finite") == 1
    assert "metric train/name is a str, not a number" in _output(console)
    assert "metric train/list is a list, not a number" in _output(console)
    tracker.close()


def test_scalars_of_numpy_and_torch_count_as_numbers(tmp_path):
    numpy = pytest.importorskip("numpy")
    tracker, _ = _tracker(tmp_path)
    tracker.log(
        0,
        "train",
        {"a": numpy.float32(0.5), "b": numpy.int64(2), "c": numpy.array(1.5), "d": numpy.array([1, 2]), "e": numpy.float32("nan")},
    )
    assert _lines(tmp_path) == [{"step": 0, "train/a": 0.5, "train/b": 2.0, "train/c": 1.5}]
    tracker.close()


def test_latest_gathers_the_namespaces_of_a_step(tmp_path):
    tracker, _ = _tracker(tmp_path)
    tracker.log(0, "train", {"loss": 1.0})
    tracker.log(1, "rollout", {"raw_reward": 0.5})
    tracker.log(1, "train", {"loss": 2.0})
    assert tracker.latest() == {"rollout/raw_reward": 0.5, "train/loss": 2.0}
    tracker.close()


def test_no_text_of_a_sample_tells_a_secret(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    hides = Redactor(["top-secret-1"])
    told = Sample(prompt="p", response="it is top-secret-1", tokens=[1, 2], response_length=1, metadata={"env": "top-secret-1"}, reward=1.0)
    plain = Sample(prompt=[{"role": "user", "content": "top-secret-1"}], response="no", tokens=[1, 2], response_length=1, reward=0.0)
    path = write_samples(tmp_path, 0, "train", [[told, plain]], text_of=lambda ids: ["x" for _ in ids], hides=hides)
    rows = parquet.read_table(path).to_pylist()
    assert [row["response"] for row in rows] == ["it is ***", "no"]
    assert rows[0]["metadata"] == '{"env": "***"}'
    assert rows[1]["prompt"] == '[{"role": "user", "content": "***"}]'
    assert (rows[0]["token_texts"], rows[0]["response_tokens"], rows[1]["token_texts"]) == (None, None, ["x"])
    assert told.response == "it is top-secret-1"


# A resume


def test_truncate_forgets_later_steps_and_a_half_written_line(tmp_path):
    tracker, _ = _tracker(tmp_path)
    for step in range(4):
        tracker.log(step, "train", {"loss": float(step)})
    tracker.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "train/lo')

    resumed, _ = _tracker(tmp_path)
    resumed.truncate_after(1)
    resumed.log(2, "train", {"loss": 9.0})
    resumed.close()
    assert [(line["step"], line["train/loss"]) for line in _lines(tmp_path)] == [(0, 0.0), (1, 1.0), (2, 9.0)]
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 3


def test_what_a_checkpoint_builds_on_is_brought_to_the_disk(tmp_path, monkeypatch):
    tracker, _ = _tracker(tmp_path)
    tracker.log(0, "train", {"loss": 1.0})
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    tracker.sync()
    tracker.close()
    assert synced == [tmp_path / "metrics.jsonl"]


def test_truncate_before_the_first_step_empties_the_file(tmp_path):
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    writer.write(0, {"a": 1.0})
    assert writer.truncate_after(-1) == 1
    writer.close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_a_half_written_line_does_not_swallow_the_next(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "a": 1}\n{"step": 1, "a"')
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    writer.write(2, {"a": 3})
    writer.close()
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [0, 2]


# TensorBoard


def _events(folder):
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto import event_pb2

    events = []
    for path in sorted(folder.iterdir()):
        for raw in RawEventFileLoader(str(path)).Load():
            event = vars(event_pb2)["Event"].FromString(raw)
            events += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            if event.HasField("session_log"):
                events.append((event.step, "restart", event.session_log.status))
    return events


def test_tensorboard_gets_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    tracker, console = _tracker(tmp_path, tensorboard=True)
    tracker.log(0, "train", {"loss": 0.5, "bad": math.nan})
    tracker.log(1, "train", {"loss": 0.25})
    tracker.truncate_after(0)
    tracker.close()
    assert _events(tmp_path / "tensorboard") == [(0, "train/loss", 0.5), (1, "train/loss", 0.25), (1, "restart", 1)]
    assert "switched off" not in _output(console)


def test_a_backend_that_fails_is_a_warning(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    tracker, console = _tracker(tmp_path, tensorboard=True)
    tracker.log(0, "train", {"loss": 0.5})
    tracker.truncate_after(0)
    tracker.close()
    assert _output(console).count("TensorBoard is switched off") == 1
    assert len(_lines(tmp_path)) == 1


def test_sample_files_that_fail_are_a_warning(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "samples").write_text("a file where the folder should be")
    tracker, console = _tracker(tmp_path)
    for step in range(2):
        tracker.log_samples(step, "train", [[Sample()]])
    tracker.close()
    assert _output(console).count("writing of samples is switched off") == 1


# Samples


def _sample(**fields):
    return Sample(
        **{"group_index": 1, "index": 2, "prompt": "2+3?", "response": "5", "response_length": 1, "label": 5, "reward": 1.0, **fields}
    )


def test_kept_and_dropped_samples_in_one_table(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    kept = [_sample(status=Status.COMPLETED, weight_versions=[3, 4]), _sample(reward=None, rollout_id=7, remove_sample=True)]
    dropped = [_sample(prompt=[{"role": "user", "content": "ü"}], label={"a": 1}, status=Status.TRUNCATED, metadata={"k": 1})]
    path = write_samples(tmp_path / "samples", 12, "train", [kept], [(dropped, "zero_std_1.0")])
    assert path == samples_path(tmp_path / "samples", "train", 12)
    assert [p.name for p in path.parent.iterdir()] == ["train_000012.parquet"]
    rows = pyarrow.parquet.read_table(path).to_pylist()
    assert rows[0] == {
        "step": 12,
        "group_index": 1,
        "index": 2,
        "rollout_id": None,
        "prompt": "2+3?",
        "response": "5",
        "label": "5",
        "reward": 1.0,
        "status": "completed",
        "kept": True,
        "drop_reason": None,
        "removed": False,
        "rm_type": None,
        "prompt_length": 0,
        "response_length": 1,
        "weight_versions": [3, 4],
        "metadata": None,
        "verdicts": [],
        "response_tokens": [],
        "token_texts": None,
        "loss_mask": None,
        "log_probs": None,
        "train_log_probs": None,
        "advantages": None,
    }
    assert (rows[1]["reward"], rows[1]["rollout_id"], rows[1]["removed"]) == (None, 7, True)
    assert rows[2]["prompt"] == '[{"role": "user", "content": "ü"}]'
    assert (rows[2]["label"], rows[2]["kept"], rows[2]["drop_reason"], rows[2]["metadata"]) == (
        '{"a": 1}',
        False,
        "zero_std_1.0",
        '{"k": 1}',
    )


def test_lengths_and_the_reward_that_a_sample_names(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    sample = _sample(tokens=[1, 2, 3, 4], response_length=1, metadata={"rm_type": "math"}, reward={"score": 1.0, "pred": "5"})
    (row,) = pyarrow.parquet.read_table(write_samples(tmp_path, 0, "eval_a", [[sample]])).to_pylist()
    assert (row["rm_type"], row["prompt_length"], row["response_length"]) == ("math", 3, 1)
    assert json.loads(row["reward"]) == {"score": 1.0, "pred": "5"}


def test_no_two_datasets_share_a_file(tmp_path):
    names = ["a b", "a_b", "a/b", "a%20b", "数学", "物理", "a-b", "a.b", "../a"]
    paths = {samples_path(tmp_path, f"eval_{name}", 0) for name in names}
    assert len(paths) == len(names) and all(path.parent == tmp_path for path in paths)
    longest = {samples_path(tmp_path, f"eval_{'数' * 120}{end}", 0) for end in "ab"}
    assert len(longest) == 2 and all(len(path.name.encode()) < 256 for path in longest)
    assert samples_path(tmp_path, "eval_math/aime", 3).name == "eval_math%2Faime_000003.parquet"


class _Tokenizer:
    """Token 1 is a word with a leading space, as SentencePiece writes it; token 2 is half a character."""

    def convert_ids_to_tokens(self, ids):
        return [{1: "▁hi", 2: "<0xC3>"}.get(token, str(token)) for token in ids]

    def decode(self, ids):
        return "".join({1: "hi", 2: "\ufffd"}.get(token, str(token)) for token in ids)


def test_the_response_is_there_token_by_token(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    fields = {"tokens": [9, 8, 1, 2, 7], "response_length": 3, "loss_mask": [1, 0, 1], "rollout_log_probs": [-0.5, 0.0, -2.0]}
    groups = [[_sample(**fields), _sample(**fields)], [_sample(tokens=[], response_length=0)]]
    trained = {0: TokenValues([-0.25, math.nan, -2.0], [1.0, math.nan, 1.0])}
    path = write_samples(tmp_path, 0, "train", groups, trained=trained, text_of=token_texts(_Tokenizer()))
    first, second, third = pyarrow.parquet.read_table(path).to_pylist()
    assert (first["response_tokens"], first["token_texts"]) == ([1, 2, 7], [" hi", "\ufffd", "7"])
    assert (first["loss_mask"], first["log_probs"]) == ([1, 0, 1], [-0.5, 0.0, -2.0])
    assert first["train_log_probs"][0] == -0.25 and math.isnan(first["train_log_probs"][1])
    assert first["advantages"][::2] == [1.0, 1.0]
    assert (second["log_probs"], second["train_log_probs"], second["advantages"]) == ([-0.5, 0.0, -2.0], None, None)
    assert third["response_tokens"] == []


def test_the_samples_of_a_step_that_fails_are_written(tmp_path):
    pytest.importorskip("pyarrow")
    tracker, _ = _tracker(tmp_path)
    for number, every in ((0, 1), (1, 2), (2, 2), (3, 0)):
        step = Step(number)
        step.rollout = Rollout([[_sample()]], [([_sample()], "failed")], {})
        with pytest.raises(ZeroDivisionError), step.writing_samples(tracker, every):
            raise ZeroDivisionError
    with Step(4).writing_samples(tracker, 1):
        pass
    tracker.close()
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == ["train_000000.parquet", "train_000002.parquet"]


def test_tokens_beyond_the_budget_of_a_file_are_left_out(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    monkeypatch.setattr("vime.track.samples.TOKEN_BUDGET", 5)
    group = [_sample(tokens=[1, 2, 3], response_length=3, index=index) for index in range(3)]
    rows = pyarrow.parquet.read_table(write_samples(tmp_path, 0, "train", [group])).to_pylist()
    assert [row["response_tokens"] for row in rows] == [[1, 2, 3], None, None]
    assert [row["response"] for row in rows] == ["5", "5", "5"]


def test_dict_rewards_are_json(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = write_samples(tmp_path, 0, "a/b c", [[_sample(reward={"acc": 1, "x": math.nan}), _sample(reward=None), _sample(reward=0.5)]])
    assert path.name == "a%2Fb%20c_000000.parquet"
    assert [row["reward"] for row in pyarrow.parquet.read_table(path).to_pylist()] == ['{"acc": 1, "x": NaN}', None, "0.5"]


def test_strange_texts_and_empty_rollouts_are_written(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = write_samples(tmp_path, 0, "train", [[_sample(response="half \ud800 pair", metadata={"o": object})]])
    assert pyarrow.parquet.read_table(path).to_pylist()[0]["response"] == "half ? pair"
    assert pyarrow.parquet.read_table(write_samples(tmp_path, 1, "train", [])).num_rows == 0


def test_a_resume_removes_the_files_of_later_steps(tmp_path):
    for step in (1, 2, 13):
        samples_path(tmp_path, "train", step).touch()
    (tmp_path / "notes.parquet").touch()
    remove_after(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.parquet", "train_000001.parquet"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
