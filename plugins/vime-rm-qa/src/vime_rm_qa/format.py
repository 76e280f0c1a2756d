"""The entry point `format`: 1.0 where a response has the structure that was asked for, else 0.0."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field, field_validator

from vime.api import Sample, hookimpl
from vime.api import Settings as BaseSettings

_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class Format:
    """Rewards the structure of a response: tags in order, by default `<think>...</think><answer>...</answer>`, or a regular expression."""

    class Settings(BaseSettings):
        tags: tuple[str, ...] = Field(default=("think", "answer"), min_length=1)
        """The tags that a response consists of: each once, in this order, with text inside and only white space around."""
        opened: bool = False
        """The prompt ends with the first tag, as some chat templates have it, so that the response starts inside."""
        pattern: str | None = None
        """In place of tags: a regular expression (of the library `regex`) that the whole response has to match. A dot matches
        line breaks too."""
        timeout: float = Field(default=1.0, gt=0)
        """Seconds that the regular expression may take for one response; more is a TimeoutError, never a reward."""

        @field_validator("tags")
        @classmethod
        def _are_names(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
            for tag in tags:
                if not _TAG.fullmatch(tag):
                    raise ValueError(f"{tag!r} is no name of a tag: letters, digits, '-' and '_', without the angle brackets")
            if len(set(tags)) < len(tags):
                raise ValueError("a tag is named twice, and each may occur once")
            return tags

        @field_validator("pattern")
        @classmethod
        def _compiles(cls, pattern: str | None) -> str | None:
            if pattern is not None:
                _compiled(pattern)
            return pattern

    def __init__(self, settings: Format.Settings) -> None:
        self.settings = settings

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        """1.0 or 0.0; the label is not looked at. Raises TimeoutError where the pattern takes longer than its limit."""
        settings = self.settings
        if settings.pattern is None:
            return 1.0 if has_tags(sample.response, settings.tags, opened=settings.opened) else 0.0
        try:
            found = _compiled(settings.pattern).fullmatch(sample.response, timeout=settings.timeout, concurrent=True)
        except TimeoutError:
            raise TimeoutError(
                f"sample {sample.index}: the pattern {settings.pattern[:80]!r} took longer than {settings.timeout:g} s "
                f"for a response of {len(sample.response)} characters; write it without nested repetitions"
            ) from None
        return 0.0 if found is None else 1.0


def has_tags(response: str, tags: Sequence[str], *, opened: bool = False) -> bool:
    """Whether a response is `<a>text</a><b>text</b>...` for these tags, each of them once. Takes time in proportion to its length."""
    text = f"<{tags[0]}>{response}" if opened else response
    position = 0
    for tag in tags:
        start, end = f"<{tag}>", f"</{tag}>"
        if text.count(start) != 1 or text.count(end) != 1:
            return False
        begin, stop = text.find(start, position), text.find(end, position)
        if begin < 0 or text[position:begin].strip() or not text[begin + len(start) : stop].strip():
            return False
        position = stop + len(end)
    return not text[position:].strip()


@functools.lru_cache(maxsize=16)
def _compiled(pattern: str) -> Any:
    """The compiled pattern. Raises ValueError, which pydantic reports, for one that is none."""
    import regex

    try:
        return regex.compile(pattern, regex.DOTALL)
    except regex.error as error:
        raise ValueError(f"no regular expression: {error}") from None
