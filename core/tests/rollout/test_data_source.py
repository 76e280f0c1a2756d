"""The data source: order, epochs, the buffer, and that an interruption changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.config.run_config import RunConfig
from vime.errors import CheckpointError, ConfigError, ContractError
from vime.plugins.function import HookFunction
from vime.rollout.data_source import DataSource, RolloutDataSource, RolloutDataSourceWithBuffer, permutation
from vime.sample import Sample, Status

NUM_GPUS = 0


def _config(folder: Path, prompts: int = 5, **values: Any) -> RunConfig:
    path = folder / f"prompts{prompts}.jsonl"
    path.write_text("".join(json.dumps({"input": f"p{i}", "label": i, "metadata": {"list": [i]}}) + "\n" for i in range(prompts)))
    defaults = {"n_samples_per_prompt": 2, "save": str(folder / "saved"), "load": str(folder / "saved")}
    return RunConfig(prompt_data=str(path), label_key="label", **{**defaults, **values})


def _labels(groups: list[list[Sample]]) -> list[Any]:
    return [group[0].label for group in groups]


# Order and samples


def test_groups_are_independent_pending_samples(tmp_path):
    (group,) = RolloutDataSource(_config(tmp_path)).get_samples(1)
    assert [(s.group_index, s.index, s.prompt, s.label, s.metadata, s.status) for s in group] == [
        (0, 0, "p0", 0, {"list": [0]}, Status.PENDING),
        (0, 1, "p0", 0, {"list": [0]}, Status.PENDING),
    ]
    group[0].metadata["list"].append("x")
    assert group[1].metadata == {"list": [0]}


def test_indices_grow_over_epochs(tmp_path):
    source = RolloutDataSource(_config(tmp_path, prompts=3))
    groups = source.get_samples(10)
    assert _labels(groups) == [0, 1, 2] * 3 + [0]
    assert [group[0].group_index for group in groups] == list(range(10))
    assert [sample.index for group in groups for sample in group] == list(range(20))
    assert source.take_metrics() == {"epoch": pytest.approx(3 + 1 / 3)}


def test_each_epoch_is_another_permutation_and_a_seed_fixes_them(tmp_path):
    config = _config(tmp_path, prompts=20, rollout_shuffle=True)
    labels = _labels(RolloutDataSource(config).get_samples(40))
    assert sorted(labels[:20]) == sorted(labels[20:]) == list(range(20))
    assert labels[:20] != labels[20:]
    assert labels == _labels(RolloutDataSource(config).get_samples(40))
    other = config.model_copy(update={"rollout_seed": config.rollout_seed + 1})
    assert _labels(RolloutDataSource(other).get_samples(20)) == labels[20:], "epoch e of seed s is epoch e - 1 of seed s + 1"


def test_the_permutation_is_pinned():
    assert list(permutation(10, 42)) == [9, 7, 8, 5, 3, 4, 1, 2, 0, 6]
    assert list(permutation(1, 0)) == [0]


def test_num_epoch_ends_the_source(tmp_path):
    source = RolloutDataSourceWithBuffer(_config(tmp_path, prompts=3, num_epoch=2))
    assert len(source.get_samples(4)) == 4
    assert _labels(source.get_samples(4)) == [1, 2]
    assert source.get_samples(4) == []
    assert source.get_samples(1) == []


def test_num_rollout_goes_before_num_epoch(tmp_path):
    assert len(RolloutDataSource(_config(tmp_path, prompts=3, num_epoch=1, num_rollout=9)).get_samples(10)) == 10


def test_wrong_calls(tmp_path):
    source = RolloutDataSource(_config(tmp_path))
    with pytest.raises(ValueError, match="-1 groups"):
        source.get_samples(-1)
    with pytest.raises(ContractError, match="no buffer"):
        source.add_samples(source.get_samples(1))
    with pytest.raises(ConfigError, match="no training data"):
        RolloutDataSource(RunConfig())


def test_the_protocol_takes_classes_that_know_nothing_of_it(tmp_path):
    class Own:
        def get_samples(self, num_samples): ...
        def add_samples(self, samples): ...
        def save(self, rollout_id): ...
        def load(self, rollout_id=None): ...
        def __len__(self):
            return 0

    class NotOne:
        def get_samples(self, num_samples): ...

    assert isinstance(Own(), DataSource)
    assert not isinstance(NotOne(), DataSource)
    assert len(RolloutDataSource(_config(tmp_path))) == 5


def test_the_tokenizer_is_the_one_that_was_given(tmp_path):
    tokenizer = object()
    assert RolloutDataSource(_config(tmp_path), tokenizer=tokenizer).tokenizer is tokenizer


# Buffer


def test_the_buffer_comes_first_in_its_own_order(tmp_path):
    source = RolloutDataSourceWithBuffer(_config(tmp_path))
    a, b, c = source.get_samples(3)
    source.add_samples([c, a])
    source.add_samples([b])
    assert source.take_metrics()["buffer_groups"] == 3
    assert source.get_samples(2) == [c, a]
    assert _labels(source.get_samples(2)) == [1, 3]


def _of_versions(group: list[Sample], *versions: int | None) -> list[Sample]:
    for sample, version in zip(group, versions, strict=True):
        sample.weight_versions = [] if version is None else [version]
    return group


def test_groups_older_than_max_staleness_are_dropped_and_counted(tmp_path):
    source = RolloutDataSourceWithBuffer(_config(tmp_path, max_staleness=2))
    versions = [(2, 2), (2, 3), (None, 1), (None, None), (3, 3)]
    groups = [_of_versions(group, *pair) for group, pair in zip(source.get_samples(5), versions, strict=True)]
    source.add_samples(groups)
    source.weight_version = 5
    assert source.get_samples(1) == [groups[3]]  # by the newest tokens of the sample that is furthest behind; a pending group has no age
    assert source.take_metrics()["samples_stale"] == 6 and source.take_metrics()["samples_stale"] == 0
    source.weight_version = 6
    assert _labels(source.get_samples(1)) == [0] and source.take_metrics()["samples_stale"] == 2
    assert source.buffer == []


@pytest.mark.parametrize(("limit", "version"), [(None, 9), (0, None), (9, 9)])
def test_nothing_is_stale_without_a_limit_or_a_version(tmp_path, limit, version):
    source = RolloutDataSourceWithBuffer(_config(tmp_path, max_staleness=limit))
    (group,) = source.get_samples(1)
    source.add_samples([_of_versions(group, 0, 0)])
    source.weight_version = version
    assert source.get_samples(1) == [group] and source.take_metrics()["samples_stale"] == 0


@pytest.mark.parametrize("groups", [[[]], [["x"]], [Sample()], ["ab"], [[Sample()]], [[Sample(), Sample(), Sample()]]])
def test_only_whole_groups_go_back(tmp_path, groups):
    source = RolloutDataSourceWithBuffer(_config(tmp_path))
    with pytest.raises(ContractError):
        source.add_samples(groups)
    assert source.buffer == []


def test_siblings_of_a_fan_out_count_once(tmp_path):
    source = RolloutDataSourceWithBuffer(_config(tmp_path))
    group = [Sample(index=0, rollout_id=7), Sample(index=0, rollout_id=7), Sample(index=1)]
    source.add_samples([group])
    assert source.get_samples(1) == [group]


def _source_with(tmp_path: Path, buffer_filter: Any, groups: int = 3) -> RolloutDataSourceWithBuffer:
    source = RolloutDataSourceWithBuffer(_config(tmp_path, prompts=9), buffer_filter=buffer_filter)
    source.buffer[:] = RolloutDataSource(_config(tmp_path, prompts=9)).get_samples(groups)
    return source


def test_case_h8_a_filter_that_does_not_delete_gives_no_duplicates(tmp_path):
    source = _source_with(tmp_path, lambda args, rollout_id, buffer, num_samples: buffer[-num_samples:])
    assert [_labels(source.get_samples(1))[0] for _ in range(3)] == [2, 1, 0]
    assert source.buffer == []


def test_case_h8_a_filter_that_returns_the_whole_buffer_is_an_error(tmp_path):
    def everything(args, rollout_id, buffer, num_samples):
        return buffer

    source = _source_with(tmp_path, everything)
    with pytest.raises(ContractError, match=r"test_data_source.*everything, hook buffer_filter: expected at most 1 groups, got 3"):
        source.get_samples(1)
    assert _labels(source.buffer) == [0, 1, 2]
    assert len(source.get_samples(3)) == 3


def _pop(args, rollout_id, buffer, num_samples):
    return [buffer.pop(0) for _ in range(min(num_samples, len(buffer)))]


def _split(args, rollout_id, buffer, num_samples):
    return [buffer[0][:1]]


def _cut_in_place(args, rollout_id, buffer, num_samples):
    del buffer[0][1:]
    return [buffer[0]]


def _mixed(args, rollout_id, buffer, num_samples):
    return [[buffer[0][0], buffer[1][1]]]


def _foreign(args, rollout_id, buffer, num_samples):
    return [[Sample(), Sample()]]


def _twice(args, rollout_id, buffer, num_samples):
    return [buffer[0], buffer[0]]


def _nothing(args, rollout_id, buffer, num_samples):
    return None


def _flat(args, rollout_id, buffer, num_samples):
    return [buffer[0][0]]


def _stuffs(args, rollout_id, buffer, num_samples):
    buffer.append([Sample(), Sample()])
    return []


def _raises(args, rollout_id, buffer, num_samples):
    buffer.clear()
    raise RuntimeError("own trouble")


def test_a_filter_that_deletes_itself(tmp_path):
    source = _source_with(tmp_path, _pop)
    assert _labels(source.get_samples(2)) == [0, 1]
    assert _labels(source.buffer) == [2]
    assert source.take_metrics()["buffer_discarded"] == 0


@pytest.mark.parametrize(
    ("buffer_filter", "problem"),
    [
        (_split, "expected whole groups of the buffer, got a part of a group"),
        (_cut_in_place, "expected whole groups of the buffer, got a part of a group"),
        (_mixed, "expected whole groups of the buffer, got a part of a group, or samples of several groups"),
        (_foreign, "expected whole groups of the buffer, got a group that is not in the buffer"),
        (_twice, "group 0 came back twice"),
        (_nothing, "expected a list of groups, got NoneType"),
        (_flat, "expected groups .lists of Sample., got a Sample"),
        (_stuffs, "put groups into the buffer, or changed some"),
    ],
)
def test_a_wrong_answer_is_refused_and_the_buffer_stays(tmp_path, buffer_filter, problem):
    source = _source_with(tmp_path, buffer_filter)
    before = [list(group) for group in source.buffer]
    with pytest.raises(ContractError, match=problem):
        source.get_samples(2)
    assert source.buffer == before


def test_a_filter_that_raises_loses_nothing(tmp_path):
    source = _source_with(tmp_path, _raises)
    with pytest.raises(RuntimeError, match="own trouble"):
        source.get_samples(2)
    assert _labels(source.buffer) == [0, 1, 2]


def test_a_filter_may_return_the_buffer_itself(tmp_path):
    source = _source_with(tmp_path, lambda args, rollout_id, buffer, num_samples: buffer)
    before = list(source.buffer)
    assert list(map(id, source.get_samples(3))) == list(map(id, before))
    assert source.buffer == []


def test_what_a_filter_throws_away_is_counted(tmp_path):
    def only_the_newest(args, rollout_id, buffer, num_samples):
        newest = buffer[-1]
        buffer.clear()
        return [newest]

    source = _source_with(tmp_path, only_the_newest)
    assert _labels(source.get_samples(1)) == [2]
    assert source.take_metrics()["buffer_discarded"] == 2
    assert source.take_metrics()["buffer_discarded"] == 0


def test_a_filter_gets_the_rollout_and_may_be_a_coroutine(tmp_path):
    seen = []

    async def first(args, rollout_id, buffer, num_samples):
        seen.append((rollout_id, num_samples, args.n_samples_per_prompt))
        return buffer[:1]

    source = _source_with(tmp_path, first)
    source.rollout_id = 4
    assert _labels(source.get_samples(2)) == [0, 0]
    assert seen == [(4, 2, 2)]


def test_a_hook_function_of_a_plugin_is_called_by_name_and_named(tmp_path):
    def lifo(num_samples, buffer):
        return buffer[::-1][:num_samples] if num_samples < 3 else 5

    label = "plugin 'lifo' (vime-lifo 1.0)"
    hook = HookFunction(plugin="lifo", label=label, hook="buffer_filter", function=lifo, order=("num_samples", "buffer"))
    source = _source_with(tmp_path, hook)
    assert _labels(source.get_samples(2)) == [2, 1]
    with pytest.raises(ContractError, match=r"^plugin 'lifo' \(vime-lifo 1.0\), hook buffer_filter: expected a list"):
        source.get_samples(3)


def test_a_filter_that_takes_less_is_completed_by_new_prompts(tmp_path):
    source = _source_with(tmp_path, lambda args, rollout_id, buffer, num_samples: [])
    assert _labels(source.get_samples(2)) == [0, 1]
    assert len(source.buffer) == 3


# Save and load


def test_case_h1_what_was_put_back_comes_first_after_a_load(tmp_path):
    config = _config(tmp_path, prompts=4)
    source = RolloutDataSourceWithBuffer(config)
    first, _ = source.get_samples(2)
    first[0].append_response_tokens(tokens=[3, 4], log_probs=[-0.1, -1 / 3], meta_info={"weight_version": 2}, text="34")
    first[0].status = Status.ABORTED
    vars(first[0])["own_note"] = "kept"
    source.add_samples([first])
    source.save(1)

    resumed = RolloutDataSourceWithBuffer(config)
    resumed.load(1)
    returned, fresh = resumed.get_samples(2)
    assert returned == first
    assert vars(returned[0])["own_note"] == "kept"
    assert _labels([fresh]) == [2]
    assert fresh[0].index == 4


def test_case_h2_a_folder_without_the_state_is_an_error(tmp_path):
    source = RolloutDataSourceWithBuffer(_config(tmp_path))
    with pytest.raises(CheckpointError, match=r"there is no data state .*global_dataset_state_dict_3.json"):
        source.load(3)
    with pytest.raises(CheckpointError, match="there is no data state"):
        source.load()
    with pytest.raises(ConfigError, match="no folder for its state"):
        RolloutDataSource(_config(tmp_path, save=None, load=None)).load(0)


@pytest.mark.parametrize("shuffle", [False, True])
def test_case_h4_saved_and_loaded_after_every_step(tmp_path, shuffle):
    config = _config(tmp_path, prompts=5, rollout_shuffle=shuffle)
    whole = RolloutDataSourceWithBuffer(config)
    expected = [[(g[0].label, g[0].group_index, g[0].index) for g in whole.get_samples(2)] for _ in range(6)]
    for stop in range(1, 7):
        source, got = RolloutDataSourceWithBuffer(config), []
        for step in range(6):
            got.append([(g[0].label, g[0].group_index, g[0].index) for g in source.get_samples(2)])
            source.save(step)
            if step + 1 <= stop:
                source = RolloutDataSourceWithBuffer(config)
                source.load(step)
        assert got == expected


def test_load_without_a_number_takes_the_newest(tmp_path):
    config = _config(tmp_path)
    source = RolloutDataSource(config)
    for step in range(11):
        source.get_samples(1)
        source.save(step)
    resumed = RolloutDataSource(config.model_copy(update={"load": None}))
    resumed.load()
    assert resumed.sample_group_index == 11


def test_a_state_of_other_data_is_refused(tmp_path):
    state = RolloutDataSource(_config(tmp_path, prompts=5)).state_dict()
    with pytest.raises(CheckpointError, match=r"belongs to data of 5 rows, and .*prompts6.jsonl has 6"):
        RolloutDataSource(_config(tmp_path, prompts=6)).load_state_dict(state)


@pytest.mark.parametrize(
    ("state", "problem"), [({}, "version None"), ({"version": 1, "epoch_id": 0}, "lacks 'sample_offset', "), ([], "is a list")]
)
def test_a_foreign_state_is_refused(tmp_path, state, problem):
    with pytest.raises(CheckpointError, match=problem):
        RolloutDataSourceWithBuffer(_config(tmp_path)).load_state_dict(state)


def test_a_damaged_state_file_is_refused(tmp_path):
    config = _config(tmp_path)
    source = RolloutDataSource(config)
    source.save(0)
    path = tmp_path / "saved" / "rollout" / "global_dataset_state_dict_0.json"
    path.write_text(path.read_text()[:20])
    with pytest.raises(CheckpointError, match="is damaged"):
        source.load(0)


def test_a_sample_that_json_cannot_hold_is_named(tmp_path):
    source = RolloutDataSourceWithBuffer(_config(tmp_path))
    (group,) = source.get_samples(1)
    group[1].metadata["image"] = object()
    source.add_samples([group])
    with pytest.raises(ContractError, match="sample 1 in the buffer cannot be saved: its metadata is not JSON data"):
        source.save(0)


def test_the_state_is_a_snapshot(tmp_path):
    source = RolloutDataSourceWithBuffer(_config(tmp_path))
    source.add_samples(source.get_samples(1))
    state = source.state_dict()
    source.buffer[0][0].metadata["list"].append("later")
    assert state["buffer"][0][0]["metadata"] == {"list": [0]}
    assert json.loads(json.dumps(state)) == state


# Any interleaving of taking, returning, saving and being killed gives the sequence of a run that was never interrupted.

ACTIONS = st.lists(st.tuples(st.sampled_from(["take", "give", "give parts", "sync", "interrupt"]), st.integers(0, 4)), max_size=30)


def _newest_first(args, rollout_id, buffer, num_samples):
    return buffer[::-1][:num_samples]


def _throws_the_rest_away(args, rollout_id, buffer, num_samples):
    chosen = buffer[1::2][:num_samples]
    buffer.clear()
    return chosen


def _with_parts(group: list[Sample], version: int) -> list[Sample]:
    """The group as an aborted rollout returns it: one sample finished and rewarded, the others with a part of their tokens."""
    for place, sample in enumerate(group):
        sample.tokens = sample.tokens or [4]
        sample.append_response_tokens(tokens=[5, 6], log_probs=[-0.5, -1 / 3], meta_info={"weight_version": version}, text="12")
        sample.status, sample.reward = (Status.ABORTED, None) if place else (Status.COMPLETED, 0.1)
    return group


@given(
    actions=ACTIONS,
    prompts=st.integers(1, 6),
    buffer_filter=st.sampled_from([None, _newest_first, _throws_the_rest_away]),
    options=st.fixed_dictionaries(
        {"rollout_shuffle": st.booleans(), "max_staleness": st.sampled_from([None, 0, 1]), "num_epoch": st.sampled_from([None, 2])}
    ),
)
@settings(max_examples=300, deadline=None)
def test_interruptions_change_nothing(tmp_path_factory, actions, prompts, buffer_filter, options):
    config = _config(tmp_path_factory.getbasetemp(), prompts=prompts, **options)

    def play(interrupts: bool) -> list[Any]:
        source, held, seen = RolloutDataSourceWithBuffer(config, buffer_filter=buffer_filter), [], []
        source.weight_version = version = 0
        for action, number in actions:
            if action == "take":
                groups = source.get_samples(number)
                seen += [sample.to_dict() for group in groups for sample in group]
                held += groups
            elif action in ("give", "give parts"):
                back, held = held[:number], held[number:]
                source.add_samples([_with_parts(group, version) for group in back] if action == "give parts" else back)
            elif action == "sync":
                source.weight_version = version = version + 1
            elif interrupts:
                state = json.loads(json.dumps(source.state_dict()))
                source = RolloutDataSourceWithBuffer(config, buffer_filter=buffer_filter)
                source.load_state_dict(state)
                source.weight_version = version
        return [*seen, source.state_dict()]

    assert play(interrupts=True) == play(interrupts=False)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
