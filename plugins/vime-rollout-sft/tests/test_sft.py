"""Supervised rollouts: rows become samples with tokens and loss masks, within the limits, and what does not fit is counted."""

import json

import pytest

from vime.api import ConfigError, ContractError, DataError, Sample, Status
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.rollout.data_source import RolloutDataSource
from vime.rollout.guards import check_train_output
from vime.runtime.build import planned_rollouts
from vime.testing import FakeTokenizer

NUM_GPUS = 0

TOKENIZER = FakeTokenizer()
CONVERSATION = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "call"},
    {"role": "tool", "content": "rain"},
    {"role": "tool", "content": "wind"},
    {"role": "assistant", "content": "both"},
]


def config_of(**fields):
    return RunConfig(**{"plugin": ["sft"], "loss_type": "sft_loss", "rollout_batch_size": 2, "input_key": "prompt", **fields})


@pytest.fixture
def rollout(tmp_path):
    """Write rows to a file and let the plugin make the first rollout of them."""

    def run(rows, evaluation=False, source=None, **fields):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = config_of(prompt_data=str(path), **fields)
        source = source or RolloutDataSource(config, tokenizer=TOKENIZER)
        function = PluginManager.load(config).claimed("generate_rollout")
        output = function.call(args=config, rollout_id=0, data_source=source, evaluation=evaluation, engine=None)
        check_train_output(config, "sft", output, fewer_allowed=False)
        return [sample for group in output.samples for sample in group], output.metrics

    return run


def trained_text(sample):
    response = sample.tokens[len(sample.tokens) - sample.response_length :]
    return TOKENIZER.decode([token for token, flag in zip(response, sample.loss_mask, strict=True) if flag])


def test_prompt_and_response_data(rollout):
    rows = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+3=", "answer": "5"}]
    samples, metrics = rollout(rows, label_key="answer")
    assert [TOKENIZER.decode(sample.tokens) for sample in samples] == ["1+1=2<|im_end|>", "2+3=5<|im_end|>"]
    assert [sample.response for sample in samples] == ["2<|im_end|>", "5<|im_end|>"]
    assert all((sample.response_length, sample.loss_mask) == (2, [1, 1]) for sample in samples)
    assert all((sample.reward, sample.status, sample.rollout_log_probs) == (0.0, Status.COMPLETED, None) for sample in samples)
    assert [(sample.group_index, sample.index) for sample in samples] == [(0, 0), (1, 1)]
    assert metrics == {"sft/truncated_rows": 0.0, "sft/dropped_rows": 0.0, "sft/trained_tokens": 4.0}


def test_messages_with_the_response_in_the_label_train_the_response_only(rollout):
    rows = [{"prompt": [*CONVERSATION[:2], {"role": "user", "content": "and?"}], "answer": "yes"}]
    (sample,), _ = rollout(rows, label_key="answer", rollout_batch_size=1)
    assert trained_text(sample) == sample.response == "yes<|im_end|>"


def test_case_d2_whole_conversations_train_the_assistant_turns(rollout):
    (sample,), metrics = rollout([{"prompt": CONVERSATION}], rollout_batch_size=1)
    assert trained_text(sample) == "call<|im_end|>both<|im_end|>"
    assert sample.response.startswith("call<|im_end|>\n<|im_start|>tool\nrain") and sample.response.endswith("both<|im_end|>")
    assert metrics["sft/trained_tokens"] == sum(sample.loss_mask) == 10


def test_tools_of_the_row_reach_the_template(rollout):
    (sample,), _ = rollout([{"prompt": CONVERSATION, "tools": [{"name": "weather"}]}], rollout_batch_size=1)
    assert "weather" in TOKENIZER.decode(sample.tokens[: -sample.response_length])


@pytest.mark.parametrize("limit", [{"rollout_max_response_len": 128}, {"vllm_max_model_len": 128, "rollout_max_response_len": 64}])
def test_case_d4_long_rows_are_cut_and_counted(rollout, limit):
    rows = [{"prompt": "long: ", "answer": "x" * 10_000}, {"prompt": "short", "answer": "y"}]
    samples, metrics = rollout(rows, label_key="answer", **limit)
    assert samples[0].response_length == limit["rollout_max_response_len"] and len(samples[0].tokens) == 6 + samples[0].response_length
    assert len(samples[0].loss_mask) == samples[0].response_length
    assert [sample.status for sample in samples] == [Status.TRUNCATED, Status.COMPLETED]
    assert metrics["sft/truncated_rows"] == 1.0


def test_the_whole_sequence_is_cut_to_the_models_length(rollout):
    (sample,), _ = rollout(
        [{"prompt": "p" * 20, "answer": "x" * 100}],
        label_key="answer",
        rollout_batch_size=1,
        vllm_max_model_len=50,
        rollout_max_response_len=40,
    )
    assert len(sample.tokens) == 50 and sample.response_length == 30


def test_rows_with_nothing_to_train_within_the_limits_are_removed_and_counted(rollout):
    rows = [{"prompt": "p" * 200, "answer": "x"}, {"prompt": "a", "answer": "b"}]
    samples, metrics = rollout(rows, label_key="answer", vllm_max_model_len=100, rollout_max_response_len=50)
    assert [sample.remove_sample for sample in samples] == [True, False]
    assert (len(samples[0].tokens), samples[0].response_length, samples[0].loss_mask) == (100, 1, [0])
    assert metrics == {"sft/truncated_rows": 1.0, "sft/dropped_rows": 1.0, "sft/trained_tokens": 2.0}


def test_each_epoch_has_every_row_once_in_an_order_of_its_own(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{number}=", "answer": str(number)}) + "\n" for number in range(9)))
    config = config_of(
        prompt_data=str(path), label_key="answer", num_epoch=3, rollout_batch_size=3, rollout_shuffle=True, vllm_max_model_len=3
    )
    source = RolloutDataSource(config, tokenizer=TOKENIZER)
    assert planned_rollouts(config, source) == 9
    function = PluginManager.load(config).claimed("generate_rollout")
    seen, trained = [], 0.0
    for rollout_id in range(9):
        output = function.call(args=config, rollout_id=rollout_id, data_source=source, evaluation=False, engine=None)
        seen += [sample.label for group in output.samples for sample in group]
        trained += output.metrics["sft/trained_tokens"]
        assert output.metrics["sft/truncated_rows"] == 3.0  # the end token does not fit into 3 tokens
    epochs = [seen[start : start + 9] for start in (0, 9, 18)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(map(str, range(9)))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert trained == 27.0


def test_data_that_has_ended_is_an_error(rollout):
    class Ended:
        tokenizer = TOKENIZER

        def get_samples(self, num_samples):
            return [[Sample(prompt="a", label="b")]]

    with pytest.raises(DataError, match="rollout 0: the data source has 1 more rows, and a rollout needs 2"):
        rollout([{"prompt": "a"}], source=Ended())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "text", "answer": 4}, "sample 0: its response is a int"),
        ({"prompt": CONVERSATION[:1], "answer": None}, "sample 0: its response is missing"),
    ],
)
def test_rows_without_a_response_are_named(rollout, row, message):
    with pytest.raises(DataError, match=message) as caught:
        rollout([row], label_key="answer", rollout_batch_size=1)
    assert "--label-key" in str(caught.value)


def test_a_conversation_that_the_template_refuses_is_named(rollout):
    class Strict(FakeTokenizer):
        def apply_chat_template(self, conversation, **options):
            raise ValueError("no system role here")

    class Source:
        tokenizer = Strict()

        def get_samples(self, num_samples):
            return [[Sample(index=7, prompt=CONVERSATION)]]

    with pytest.raises(DataError, match="sample 7: the chat template refuses this conversation: ValueError: no system role here"):
        rollout([{"prompt": "x"}], source=Source(), rollout_batch_size=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"evaluation": True}, "generates nothing to evaluate"),
        ({"loss_type": "policy_loss", "n_samples_per_prompt": 1}, "a policy loss learns nothing"),
        ({"n_samples_per_prompt": 4}, "n_samples_per_prompt is 4"),
    ],
)
def test_what_cannot_work_is_refused(rollout, fields, message):
    with pytest.raises(ConfigError, match=message):
        rollout([{"prompt": "a", "answer": "b"}], label_key="answer", **fields)


def test_a_data_source_without_a_tokenizer_is_named(rollout):
    with pytest.raises(ContractError, match="needs the model's tokenizer, and object has none"):
        rollout([{"prompt": "a"}], source=object())


def test_upstreams_path_makes_the_same_rollout(rollout):
    rows = [{"prompt": "a", "answer": "b"}] * 2
    path = "vime.rollout.sft_rollout.generate_rollout"
    samples, _ = rollout(rows, label_key="answer", plugin=[], rollout_function_path=path)
    assert [sample.response for sample in samples] == ["b<|im_end|>"] * 2


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
