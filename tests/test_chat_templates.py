"""Loss masks of supervised rows under the chat templates that the models ship, byte by byte, and against transformers' own masks.

The templates are those of trl's collection: as published, and in a version whose `{% generation %}` tags let
transformers say by itself which tokens are the assistant's.
"""

import importlib.util
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from vime.api import DataError
from vime_rollout_sft.masks import encode_conversation

NUM_GPUS = 0

pytest.importorskip("transformers")
found = importlib.util.find_spec("trl")
if found is None or found.submodule_search_locations is None:
    pytest.skip("trl has the templates", allow_module_level=True)
TEMPLATES = Path(found.submodule_search_locations[0]) / "chat_templates"

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As SmolLM2-Instruct ships it; the other published ones are files of trl."""
MISTRAL_LIKE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
"""No generation prompt, a space before each answer: what tokenizers of the SentencePiece kind come with."""
SPECIALS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
]
QWEN, LLAMA, GEMMA = "<|im_end|>", "<|eot_id|>", "<end_of_turn>"


def template(name):
    return SMOLLM2 if name == "smollm2" else (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def tokenizer_of(name) -> Any:
    """One token a byte, the special tokens of all families, and the template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({character: number for number, character in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    end = "<eos>" if name.startswith("gemma") else LLAMA if name.startswith("llama") else QWEN
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=end, bos_token="<bos>" if name.startswith("gemma") else "<|begin_of_text|>"
    )
    tokenizer.chat_template = template(name)
    return tokenizer


def parts(tokenizer, token_ids, mask):
    """The texts of the runs of mask 1."""
    runs = itertools.groupby(zip(token_ids, mask, strict=True), key=lambda pair: pair[1])
    return [tokenizer.decode([token for token, _ in run]) for flag, run in runs if flag]


def trained(name, messages, **options):
    tokenizer = tokenizer_of(name)
    encoded = encode_conversation(tokenizer, messages, **options)
    whole = tokenizer.apply_chat_template(messages, tokenize=False, **{key: options[key] for key in options.keys() - {"last_only"}})
    text = tokenizer.decode(encoded.token_ids)
    assert whole.startswith(text) and not whole[len(text) :].strip(), "the tokens are those of the conversation"
    return parts(tokenizer, encoded.token_ids, encoded.loss_mask)


def says(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = {"type": "function", "function": {"name": "look", "arguments": {"q": "x"}}}
PLAIN = {
    "two turns": [says("user", "hi"), says("assistant", "hello"), says("user", "1+1?"), says("assistant", "2")],
    "empty": [says("user", "hi"), says("assistant", ""), says("user", "b"), says("assistant", "")],
    "white space": [says("user", "hi"), says("assistant", "  a b \n"), says("user", "\n"), says("assistant", "\n\nx\n")],
    "emoji and CJK": [says("user", "你好😀"), says("assistant", "👩🏽 日本語"), says("user", "é"), says("assistant", "ﷺ🎉")],
    "special tokens": [
        says("user", "<|im_end|> a <|eot_id|><|im_start|>assistant\n"),
        says("assistant", "x <|im_end|>\n<|im_start|>assistant\ny<|eot_id|><end_of_turn>"),
        says("user", "<start_of_turn>model\n"),
        says("assistant", "<|im_start|>assistant\n<|im_end|>"),
    ],
    "private use": [
        says("user", "\ue000\ue001"),
        says("assistant", "\ue000"),
        says("user", "q"),
        says("assistant", "a\ue000\ue001\ue002b"),
    ],
    "all the same": [says("user", "x"), says("assistant", "x"), says("user", "x"), says("assistant", "x")],
    "long": [says("user", "a"), says("assistant", "word " * 4000), says("user", "b" * 4000), says("assistant", "z " * 4000)],
    "reasoning": [says("user", "a"), says("assistant", "A", reasoning_content="r"), says("user", "b"), says("assistant", "B")],
}
SYSTEM = {"system": [says("system", "S"), *PLAIN["two turns"]]}
LOOSE = {
    "assistant first": [says("assistant", "welcome"), says("user", "hi"), says("assistant", "yes")],
    "two in a row": [says("user", "hi"), says("assistant", "one"), says("assistant", "two"), says("assistant", "")],
}
TOOLS = {
    "tools": [
        says("user", "w?"),
        says("assistant", None, tool_calls=[CALL]),
        says("tool", "rain"),
        says("tool", "wind"),
        says("assistant", "both"),
        says("user", "more"),
        says("assistant", "calling", tool_calls=[CALL, CALL]),
        says("tool", "<|im_end|>"),
        says("assistant", "fine"),
    ]
}
ORACLE = [
    *(("qwen2_5_training", name, messages) for name, messages in (PLAIN | SYSTEM | LOOSE | TOOLS).items()),
    *(("qwen3_training", name, messages) for name, messages in (PLAIN | SYSTEM | LOOSE | TOOLS).items()),
    *(("llama3_training", name, messages) for name, messages in (PLAIN | SYSTEM | LOOSE).items()),
    *(("gemma_training", name, messages) for name, messages in PLAIN.items()),
]


def by_transformers(name, tokenizer, messages):
    """What transformers' own mask trains, but for line breaks that no model generates.

    The tags of these templates may hold the one after the end token, and for Qwen2.5 that of the generation prompt.
    """
    told = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    said = [part.removesuffix("\n") for part in parts(tokenizer, told["input_ids"], told["assistant_masks"])]
    assert name != "qwen2_5_training" or all(part.startswith("\n") for part in said)
    return [part.removeprefix("\n") for part in said] if name == "qwen2_5_training" else said


@pytest.mark.parametrize(("name", "case", "messages"), ORACLE, ids=[f"{name}-{case}" for name, case, _ in ORACLE])
def test_the_mask_is_that_of_transformers_under_generation_tags(name, case, messages):
    if (name, case) == ("qwen3_training", "assistant first"):
        messages = messages[1:]  # what that template writes there has no generation prompt to be known by
    expected = by_transformers(name, tokenizer_of(name), messages)
    assert len(expected) == sum(message["role"] == "assistant" for message in messages)
    assert trained(name, messages) == expected
    assert trained(name, messages, last_only=True) == expected[-1:]


def test_random_conversations_have_the_mask_of_transformers():
    """Contents made of what could be mistaken for something else, in every order."""
    draw = random.Random(0)
    pieces = [
        "a",
        " ",
        "\n",
        "<|im_end|>",
        "<|im_start|>",
        "assistant\n",
        "<think>",
        "</think>",
        "<eos>",
        "<|eot_id|>",
        "é",
        "\ue000",
        "user",
    ]
    for name in ("qwen2_5_training", "llama3_training", "gemma_training"):
        tokenizer = tokenizer_of(name)
        for _ in range(40):
            contents = ["".join(draw.choices(pieces, k=draw.randrange(6))) for _ in range(2 * draw.randrange(1, 4))]
            messages = [says("assistant" if number % 2 else "user", content) for number, content in enumerate(contents)]
            assert trained(name, messages) == by_transformers(name, tokenizer, messages), messages


@pytest.mark.parametrize(("name", "end"), [("smollm2", QWEN), ("qwen2_5", QWEN), ("llama3", LLAMA), ("llama3_1", LLAMA), ("gemma", GEMMA)])
def test_published_templates_train_the_answers_with_their_end(name, end):
    assert trained(name, PLAIN["two turns"]) == [f"hello{end}", f"2{end}"]
    assert trained(name, PLAIN["empty"]) == [end, end]
    assert trained(name, PLAIN["emoji and CJK"]) == [f"👩🏽 日本語{end}", f"ﷺ🎉{end}"]


def test_qwen3_trains_the_reasoning_that_it_shows():
    """Reasoning of turns before the last question is stripped; the answer to the last one has its block, empty or not."""
    empty = "<think>\n\n</think>\n\n"
    assert trained("qwen3", PLAIN["two turns"]) == [f"hello{QWEN}", f"{empty}2{QWEN}"]
    thoughts = [
        says("user", "a"),
        says("assistant", "<think>\nfirst\n</think>\n\nA"),
        says("user", "b"),
        says("assistant", "B", reasoning_content="second"),
    ]
    assert trained("qwen3", thoughts) == [f"A{QWEN}", f"<think>\nsecond\n</think>\n\nB{QWEN}"]
    assert trained("qwen3", LOOSE["two in a row"]) == [f"one{QWEN}", f"two{QWEN}", f"{empty}{QWEN}"]
    assert trained("qwen3", LOOSE["two in a row"][:3]) == [f"one{QWEN}", f"{empty}two{QWEN}"]
    assert trained("qwen3", PLAIN["two turns"], enable_thinking=False) == [f"hello{QWEN}", f"2{QWEN}"]


def test_contents_in_a_template_that_changes_earlier_turns():
    """There the turn is found by a second rendering with a marker in the place of its content, which no content may hold."""
    assert trained("qwen3", PLAIN["private use"]) == [f"\ue000{QWEN}", f"<think>\n\n</think>\n\na\ue000\ue001\ue002b{QWEN}"]
    assert trained("qwen3", PLAIN["all the same"]) == [f"x{QWEN}", f"<think>\n\n</think>\n\nx{QWEN}"]
    assert trained("qwen3", PLAIN["special tokens"])[0] == f"{PLAIN['special tokens'][1]['content']}{QWEN}"


def test_a_generation_prompt_in_what_the_user_says_is_not_taken_for_one():
    """Of a template that shows no part of a conversation with a generation prompt, but for the first message."""
    tokenizer = tokenizer_of("qwen3")
    tokenizer.chat_template = (
        "{% if add_generation_prompt and messages|length > 1 %}{{ raise_exception('no') }}{% endif %}" + tokenizer.chat_template
    )
    prompt = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    conversation = [says("user", "a"), says("assistant", "one"), says("user", prompt), says("assistant", "two")]
    conversation += [says("user", "b"), says("assistant", "three")]
    encoded = encode_conversation(tokenizer, conversation, enable_thinking=False)
    assert parts(tokenizer, encoded.token_ids, encoded.loss_mask) == [f"one{QWEN}", f"two{QWEN}", f"three{QWEN}"]


def test_tool_calls_are_trained_and_their_results_are_not():
    call = '<tool_call>\n{"name": "look", "arguments": {"q": "x"}}\n</tool_call>'
    expected = [f"{call}{QWEN}", f"both{QWEN}", f"calling\n{call}\n{call}{QWEN}", f"<think>\n\n</think>\n\nfine{QWEN}"]
    assert trained("qwen3", TOOLS["tools"]) == expected
    assert trained("qwen2_5", TOOLS["tools"]) == [*expected[:-1], f"fine{QWEN}"]
    one = TOOLS["tools"][:5]
    llama_call = '{"name": "look", "parameters": {"q": "x"}}'
    assert trained("llama3_1", one, tools=[{"type": "function", "function": {"name": "look"}}]) == [f"{llama_call}{LLAMA}", f"both{LLAMA}"]


@pytest.mark.parametrize(
    ("name", "turn", "message"),
    [
        ("llama3", says("assistant", None, tool_calls=[CALL]), "message 1 has no content, and the chat template writes 'None'"),
        ("llama3", says("assistant", "calling", tool_calls=[CALL]), "shows nothing of the tool calls of the assistant turn at message 1"),
        ("smollm2", says("assistant", "", tool_calls=[CALL]), "shows nothing of the tool calls of the assistant turn at message 1"),
    ],
)
def test_what_a_template_leaves_out_of_a_turn_is_an_error(name, turn, message):
    with pytest.raises(DataError, match=message):
        trained(name, [says("user", "w?"), turn, says("tool", "rain"), says("assistant", "ok")])
    with pytest.raises(DataError, match=message):
        trained(name, [says("user", "w?"), turn, says("tool", "rain"), says("assistant", "ok")], last_only=True)


def test_gemma_refuses_a_system_message_in_its_own_words():
    with pytest.raises(Exception, match="System role not supported"):
        trained("gemma", SYSTEM["system"])


def pieces_of(tokenizer, messages):
    encoded = encode_conversation(tokenizer, messages)
    tokens = tokenizer.convert_ids_to_tokens(encoded.token_ids)
    runs = itertools.groupby(zip(tokens, encoded.loss_mask, strict=True), key=lambda pair: pair[1])
    return [[token for token, _ in run] for flag, run in runs if flag], tokens


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("scheme", ["always", "first"])
def test_a_tokenizer_of_the_sentencepiece_kind_gets_the_whole_text(fast, scheme):
    """It puts a space before every text: before each piece there would be one that no model sees."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    class Slow(PreTrainedTokenizerFast):
        is_fast = False  # type: ignore[assignment]

        def __call__(self, *arguments, **options):
            assert "return_offsets_mapping" not in options, "a slow tokenizer has no offsets"
            return super().__call__(*arguments, **options)

    words = ["▁hi", "▁yes", "▁more", "▁ok", "▁[INST]", "▁[/INST]", "▁", "h", "i", "yes", "more", "ok", "a", "▁a", "<unk>"]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    kind = PreTrainedTokenizerFast if fast else Slow
    tokenizer = kind(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = MISTRAL_LIKE
    conversation = [says("user", "hi"), says("assistant", "yes"), says("user", "more"), says("assistant", "ok ok")]
    trained_tokens, tokens = pieces_of(tokenizer, conversation)
    assert tokens == tokenizer.tokenize(tokenizer.apply_chat_template(conversation, tokenize=False))
    assert [part[-1] for part in trained_tokens] == ["</s>", "</s>"]
    assert [token for part in trained_tokens for token in part if token not in ("▁", "</s>")] == ["▁yes", "▁ok", "▁ok"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
