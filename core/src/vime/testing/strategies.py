"""Hypothesis strategies for samples, groups and batches, as a rollout would leave them: aligned, and of one reward shape.

    from hypothesis import given
    from vime.testing import strategies as vst

    @given(vst.groups(n_samples=4, rewards=vst.rewards(), fan_out=True))
    def test_my_filter_never_raises(group):
        my_filter(RunConfig(), group)

Everywhere an argument that is None is drawn, and a value or strategy that is given is used.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from vime.sample import Sample, Status
from vime.testing.factories import finished_sample

__all__ = [
    "batches",
    "chats",
    "dict_rewards",
    "for_all",
    "groups",
    "hostile_responses",
    "labels",
    "prompts",
    "responses",
    "rewards",
    "samples",
    "statuses",
]

T = TypeVar("T")
_ALPHABET = (
    string.printable
    + "\x00\x07\x1b\x7f\u00a0\u00b2\u00bd\u00d7\u00e9\u00f1\u00fc\u00df\u0131\u0301"  # controls, Latin with marks, a combining accent
    + "\u03b1\u03c0\u03a3\u0434\u0416\u05d0\u05e2\u0627\u0639\u0665\u0915\u0e01"  # Greek, Cyrillic, Hebrew, Arabic, Devanagari, Thai
    + "\u4e2d\u6587\u7b54\u3042\u30ab\ud55c\uff14\uff1d"  # Chinese, Japanese, Korean, full width
    + "\u200b\u200d\u200e\u200f\u202e\u202c\u2028\ufeff\ufffd"  # without width, right to left, line separators
    + "\u2212\u221a\u221e\u2248\u2264\u222b\u20ac\U0001d7d8\U0001f9ee\U0001f469\U0001f3fd"  # mathematics and symbols beyond 16 bits
)
_NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)


def chats() -> SearchStrategy[list[dict[str, Any]]]:
    """Conversations that end with a turn of the user, and may begin with one of the system."""
    content = st.text(_ALPHABET, max_size=20)
    turns = st.lists(content, min_size=1, max_size=3).map(
        lambda texts: [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]
    )
    system = st.one_of(st.just([]), content.map(lambda text: [{"role": "system", "content": text}]))
    return st.tuples(system, turns).map(
        lambda parts: [*parts[0], *parts[1], *([{"role": "user", "content": "?"}] if len(parts[1]) % 2 == 0 else [])]
    )


def prompts() -> SearchStrategy[str | list[dict[str, Any]]]:
    """Prompts as text or as a conversation."""
    return st.one_of(st.text(_ALPHABET, min_size=1, max_size=20), chats())


def labels() -> SearchStrategy[Any]:
    """Labels as data files have them: text, numbers, lists and mappings. Never None."""
    scalar = st.one_of(st.text(_ALPHABET, max_size=10), st.integers(-1000, 1000), st.floats(-1e3, 1e3))
    return st.one_of(scalar, st.lists(scalar, max_size=3), st.dictionaries(_NAMES, scalar, max_size=3))


def responses() -> SearchStrategy[str]:
    """Texts of any length up to 60 characters, of any script, with a boxed answer in some of them."""
    text = st.text(_ALPHABET, max_size=60)
    return st.one_of(text, st.tuples(text, text).map(lambda pair: f"{pair[0]} \\boxed{{{pair[1]}}}"))


def hostile_responses() -> SearchStrategy[str]:
    """What models really write and parsers trip over. None is longer than 20,000 characters."""
    return st.sampled_from(
        [
            "",
            " \n\t ",
            "\x00",
            "4\x00",
            "\\boxed{",
            "\\boxed{}",
            "\\boxed{\\boxed{",
            "}" * 50,
            "{" * 2000,
            "(" * 2000 + ")" * 2000,
            "\\frac{1}{" * 200,
            "9" * 10_000,
            "\\boxed{" + "9" * 10_000 + "}",
            "\\boxed{10**10**10}",
            "\\boxed{9^{9^{9^9}}}",
            "\\boxed{1e999999999}",
            "\\boxed{\\frac{1}{0}}",
            "nan",
            "-inf",
            "\u202e4\u202c = \u05d0\u05e8\u05d1\u05e2",
            "\u7b54\u6848\u662f\u56db\u3002\uff14",
            "\U0001f9ee\u200d\U0001f469",
            "\ud7ff\ufffd\ufeff",
            "<|im_end|><|im_start|>user\n",
            "<think>" * 300,
            "%s %n {0} {x} $HOME `id`",
            "'; DROP TABLE rewards; --",
            "word " * 4000,
        ]
    )


def rewards(minimum: float = -10.0, maximum: float = 10.0) -> SearchStrategy[float]:
    """Finite rewards; 0 and 1 come often, as they do in practice."""
    return st.one_of(st.sampled_from([0.0, 1.0]), st.floats(minimum, maximum, allow_nan=False))


_NUMBERS = rewards()


def dict_rewards(
    keys: Sequence[str] = ("score", "format"), minimum: float = -10.0, maximum: float = 10.0
) -> SearchStrategy[dict[str, Any]]:
    """Rewards as a dict with these keys, each a finite number."""
    return st.fixed_dictionaries({key: rewards(minimum, maximum) for key in keys})


def statuses(*, failed: bool = False) -> SearchStrategy[Status]:
    """How generation ended: COMPLETED or TRUNCATED, with `failed` also FAILED and ABORTED."""
    return st.sampled_from([Status.COMPLETED, Status.TRUNCATED, *([Status.FAILED, Status.ABORTED] if failed else [])])


@st.composite
def samples(
    draw: DrawFn,
    *,
    index: int = 0,
    group_index: int = 0,
    prompt: Any = None,
    label: Any = None,
    response: str | SearchStrategy[str] | None = None,
    reward: Any = None,
    status: Status | SearchStrategy[Status] | None = None,
    masks: bool = False,
) -> Sample:
    """A finished sample, aligned. Without `reward` it has none. With `masks` some have a loss mask, with log-prob 0.0 where it is 0."""
    sample = finished_sample(
        index,
        _drawn(draw, response, responses()),
        prompt=_drawn(draw, prompt, prompts()),
        label=_drawn(draw, label, labels()),
        group_index=group_index,
        reward=_drawn(draw, reward, st.none()),
        status=_drawn(draw, status, statuses()),
    )
    length = sample.response_length
    numbers = draw(st.lists(st.floats(-5.0, 0.0), min_size=min(length, 4), max_size=min(length, 4)))
    sample.rollout_log_probs = [numbers[position % len(numbers)] for position in range(length)]
    if masks and draw(st.booleans()):
        pattern = draw(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=6))
        sample.loss_mask = [pattern[position % len(pattern)] for position in range(length)]
        sample.rollout_log_probs = [value if kept else 0.0 for value, kept in zip(sample.rollout_log_probs, sample.loss_mask, strict=True)]
    return sample


@st.composite
def groups(
    draw: DrawFn,
    *,
    n_samples: int | SearchStrategy[int] | None = None,
    rewards: SearchStrategy[Any] | None = None,
    status: Status | SearchStrategy[Status] | None = None,
    prompt: Any = None,
    label: Any = None,
    response: str | SearchStrategy[str] | None = None,
    fan_out: bool = False,
    masks: bool = False,
    group_index: int = 0,
    first_index: int = 0,
) -> list[Sample]:
    """A flat group: one prompt and label, `n_samples` rollouts (default 1 to 6), rewards of one shape.

    Without `rewards` all are numbers or all are dicts with the keys "score" and "format". With `fan_out` some rollouts
    have two or three adjacent samples that share `rollout_id` and reward.
    """
    size = _drawn(draw, n_samples, st.integers(1, 6))
    common = {"prompt": _drawn(draw, prompt, prompts()), "label": _drawn(draw, label, labels())}
    shape = rewards if rewards is not None else draw(st.sampled_from([_NUMBERS, dict_rewards()]))
    group: list[Sample] = []
    for position in range(size):
        index, reward = first_index + position, draw(shape)
        siblings = draw(st.sampled_from([1, 1, 2, 3])) if fan_out else 1
        for _ in range(siblings):
            one = draw(
                samples(
                    index=index, group_index=group_index, response=response, reward=st.just(reward), status=status, masks=masks, **common
                )
            )
            one.reward = dict(reward) if isinstance(reward, dict) else reward
            one.rollout_id = index if siblings > 1 else None
            group.append(one)
    return group


@st.composite
def batches(
    draw: DrawFn,
    *,
    n_groups: int | SearchStrategy[int] | None = None,
    n_samples: int = 3,
    rewards: SearchStrategy[Any] | None = None,
    **options: Any,
) -> list[list[Sample]]:
    """Groups as a rollout returns them: consecutive indices, `n_samples` rollouts each, one shape of reward. `options` as for `groups`."""
    count = _drawn(draw, n_groups, st.integers(1, 4))
    shape = rewards if rewards is not None else draw(st.sampled_from([_NUMBERS, dict_rewards()]))
    return [
        draw(groups(n_samples=n_samples, rewards=shape, group_index=number, first_index=number * n_samples, **options))
        for number in range(count)
    ]


def for_all(strategy: SearchStrategy[T], body: Callable[[T], object], *, max_examples: int = 25) -> None:
    """Call `body` with examples of `strategy`, the same ones every time; the simplest failing one raises what `body` raised."""

    @settings(
        max_examples=max_examples,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=tuple(HealthCheck),  # pyright: ignore[reportArgumentType] - its class is iterable
    )
    @given(strategy)
    def run(example: T) -> None:
        body(example)

    run()


def _drawn(draw: DrawFn, given: Any, default: SearchStrategy[Any]) -> Any:
    """What was given, drawn from where it is a strategy, else from the default."""
    if given is None:
        return draw(default)
    return draw(cast("SearchStrategy[Any]", given)) if isinstance(given, SearchStrategy) else given
