"""Loss masks: what is trained, under chat templates of several families, is what the model itself says."""

import jinja2.sandbox
import pytest

from vime.api import DataError
from vime.testing import FakeTokenizer
from vime_rollout_sft.masks import encode_conversation, encode_pair

NUM_GPUS = 0

CHATML = r"""
{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""

SMOLLM2 = r"""
{%- if messages[0].role != 'system' -%}{{- '<|im_start|>system\nBe helpful.<|im_end|>\n' -}}{%- endif -%}
{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""

# Reasoning of turns before the last question is left out; tool results in a row share one user turn.
QWEN3 = r"""
{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
  {%- if m.role == 'assistant' -%}
    {%- set parts = (m.content or '').split('</think>') -%}
    {%- set said = parts[-1].lstrip('\n') -%}
    {%- set thought = parts[0].split('<think>')[-1].strip('\n') if parts|length > 1 else '' -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- if loop.index0 > ns.last -%}{{- '<think>\n' + thought + '\n</think>\n\n' -}}{%- endif -%}
    {{- said -}}
    {%- for call in m.tool_calls or [] -%}{{- '\n<tool_call>' + call.function.name + '</tool_call>' -}}{%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- elif m.role == 'tool' -%}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' -}}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
  {%- else -%}
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
{%- if add_generation_prompt and enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}
"""

LLAMA3 = r"""
{{- '<|begin_of_text|>' -}}
{%- for m in messages -%}
{{- '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}
"""

GEMMA = r"""
{{- '<bos>' -}}
{%- for m in messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('roles must alternate user/assistant') -}}{%- endif -%}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}
"""

SPECIALS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<bos>", "<start_of_turn>", "<end_of_turn>"]


class TemplateTokenizer(FakeTokenizer):
    """One token per character, with a Jinja chat template, rendered as transformers does it."""

    def __init__(self, template):
        super().__init__()
        self.chat_template = template.strip()

    def get_added_vocab(self):
        return dict.fromkeys(SPECIALS, 3)

    def apply_chat_template(self, conversation, tools=None, *, add_generation_prompt=False, **options):
        def raise_exception(message):
            raise jinja2.TemplateError(message)

        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = raise_exception
        return environment.from_string(self.chat_template).render(
            messages=conversation, tools=tools, add_generation_prompt=add_generation_prompt, **options
        )


def trained(template, messages, **options):
    """The parts of the conversation with mask 1, and the whole text."""
    tokenizer = TemplateTokenizer(template)
    encoded = encode_conversation(tokenizer, messages, **options)
    assert len(encoded.token_ids) == len(encoded.loss_mask)
    parts, run = [], []
    for token, flag in [*zip(encoded.token_ids, encoded.loss_mask, strict=True), (0, 0)]:
        if flag:
            run.append(token)
        elif run:
            parts.append(tokenizer.decode(run))
            run = []
    return parts, tokenizer.decode(encoded.token_ids)


def says(role, content, **more):
    return {"role": role, "content": content, **more}


TURNS = [says("user", "hi"), says("assistant", "hello"), says("user", "1+1?"), says("assistant", "2")]


@pytest.mark.parametrize(
    ("template", "end"),
    [(CHATML, "<|im_end|>"), (SMOLLM2, "<|im_end|>"), (LLAMA3, "<|eot_id|>"), (GEMMA, "<end_of_turn>")],
    ids=["chatml", "smollm2", "llama3", "gemma"],
)
def test_assistant_turns_and_their_end_are_trained_and_nothing_else(template, end):
    parts, text = trained(template, TURNS)
    assert parts == [f"hello{end}", f"2{end}"]
    rendered = TemplateTokenizer(template).apply_chat_template(TURNS)
    assert rendered.rstrip() == text  # what follows the last end is never generated
    parts, text_of_last = trained(template, TURNS, last_only=True)
    assert parts == [f"2{end}"] and text_of_last == text


@pytest.mark.parametrize("template", [CHATML, SMOLLM2, QWEN3, LLAMA3], ids=["chatml", "smollm2", "qwen3", "llama3"])
def test_case_d2_tool_messages_in_a_row_are_not_trained(template):
    messages = [
        says("system", "Use tools."),
        says("user", "weather?"),
        says("assistant", "calling"),
        says("tool", "rain"),
        says("tool", "wind"),
        says("assistant", "Rain and wind."),
    ]
    end = "<|eot_id|>" if template == LLAMA3 else "<|im_end|>"
    parts, text = trained(template, messages)
    if template == QWEN3:  # both turns come after the last question
        assert parts == [f"<think>\n\n</think>\n\ncalling{end}", f"<think>\n\n</think>\n\nRain and wind.{end}"]
    else:
        assert parts == [f"calling{end}", f"Rain and wind.{end}"]
    assert "rain" in text and "wind" in text


def test_reasoning_that_the_template_drops_from_earlier_turns():
    messages = [
        says("user", "a"),
        says("assistant", "<think>\nfirst thought\n</think>\n\nA"),
        says("user", "b"),
        says("assistant", "<think>\nsecond thought\n</think>\n\nB"),
    ]
    parts, text = trained(QWEN3, messages)
    assert parts == ["A<|im_end|>", "<think>\nsecond thought\n</think>\n\nB<|im_end|>"]
    assert "first thought" not in text


def test_a_generation_prompt_that_closes_the_reasoning_is_not_trained():
    parts, _ = trained(QWEN3, TURNS, enable_thinking=False)
    assert parts == ["hello<|im_end|>", "2<|im_end|>"]


def test_tool_calls_without_content():
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    messages = [says("user", "x"), says("assistant", None, tool_calls=[call]), says("tool", "y"), says("assistant", "z")]
    parts, _ = trained(QWEN3, messages)
    assert parts == ["<think>\n\n</think>\n\n\n<tool_call>look</tool_call><|im_end|>", "<think>\n\n</think>\n\nz<|im_end|>"]


@pytest.mark.parametrize("content", ["", " spaces ", "\nlines\n\n", "<|im_end|> said", "assistant", "hi"])
def test_contents_that_look_like_something_else(content):
    parts, text = trained(CHATML, [says("user", "hi"), says("assistant", content)])
    assert parts == [f"{content}<|im_end|>"] and text == f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{content}<|im_end|>"


def test_a_conversation_that_starts_with_the_assistant():
    parts, _ = trained(LLAMA3, [says("assistant", "welcome"), says("user", "hi"), says("assistant", "yes")])
    assert parts == ["welcome<|eot_id|>", "yes<|eot_id|>"]


def test_a_template_that_hides_the_assistant_is_refused():
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(DataError, match="shows nothing of the assistant turn at message 1"):
        trained(template, TURNS[:2])


def test_what_the_template_refuses_is_raised():
    with pytest.raises(jinja2.TemplateError, match="alternate"):
        trained(GEMMA, [says("system", "s"), says("user", "u"), says("assistant", "a")])


def test_pieces_are_encoded_as_prompt_and_response_are_in_a_rollout():
    """A tokenizer that merges over the boundary must not see it: the prompt's tokens are those of the prompt alone."""

    class Merging(TemplateTokenizer):
        def encode(self, text, add_special_tokens=True):
            return [token for word in text.replace("t\nh", "\u00a1").split("\u00a1") for token in [*super(Merging, self).encode(word), 3]]

    tokenizer = Merging(CHATML)
    prompt = tokenizer.apply_chat_template(TURNS[:1], add_generation_prompt=True)
    encoded = encode_conversation(tokenizer, TURNS[:2])
    assert encoded.token_ids[: encoded.prompt_length] == tokenizer.encode(prompt)


def test_a_pair_ends_with_one_end_of_sequence():
    tokenizer = FakeTokenizer()
    encoded = encode_pair(tokenizer, "1+1=", "2")
    assert encoded.token_ids == [*tokenizer.encode("1+1=2"), tokenizer.eos_token_id] and encoded.loss_mask == [0, 0, 0, 0, 1, 1]
    assert encode_pair(tokenizer, "1+1=", "2<|im_end|>") == encoded


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
