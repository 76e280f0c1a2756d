"""Keys, tokens and passwords, kept out of all that is written down: by the name of a setting, and by their value.

A value is known as a secret from the name that it stands under, in the environment, in settings, or from its type
(pydantic's SecretStr). Whatever text it turns up in afterwards, it is replaced by `***` there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import quote

MASK = "***"
SHORTEST = 8
"""Characters of the shortest value that is looked for in text: shorter ones are words that mean other things too."""

_ANYWHERE = {"secret", "secrets", "password", "passwords", "passwd", "passphrase", "pwd", "credential", "credentials", "apikey"}
_LAST = {"token", "key"}
_IN_VARIABLES = _ANYWHERE | _LAST | {"tokens", "keys", "pat"}
_PLACES = set(re.split(r"\W", "file|path|dir|sock|name|url|host|port|id|type|header|length|len|size|env|var|variable|timeout"))
"""Last words of names that say where a secret lies, or how it is, and not what it is."""
_KEYS_OF_DATA = re.compile(
    "input|output|label|metadata|tool|reward|eval|answer|prompt|response|group|sort|dict|row|column|field|json|data|score|messages?|question|"
    "solution|target|index|name|image|system|difficulty|dataset|state|cache|primary|foreign|text|path|class|category|sample"
)
"""`label_key` and the like name an entry of a mapping."""
_SPECIAL_TOKENS = re.compile("pad|stop|eos|bos|sep|cls|mask|unk|start|end|begin|think|special|first|last|new|max|min|image|next")
"""`stop_token` and the like are tokens of a model."""
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a secret: api_key, hf_token, password; not label_key, stop_token or token_file."""
    return _is_secret(_words(name))


def _is_secret(words: list[str]) -> bool:
    if not words or words[-1] in _PLACES:
        return False
    if words[-1] == "key" and len(words) > 1 and _KEYS_OF_DATA.fullmatch(words[-2]):
        return False
    if words[-1] == "token" and len(words) > 1 and _SPECIAL_TOKENS.fullmatch(words[-2]):
        return False
    return words[-1] in _LAST or words[-2:] == ["api", "keys"] or not _ANYWHERE.isdisjoint(words)


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name holds a secret: OPENAI_API_KEY, HF_TOKEN, DB_PASSWORD_1; not TOKENIZERS_PARALLELISM."""
    words = [word for word in _words(name) if not word.isdigit()]
    return name not in ("PWD", "OLDPWD") and bool(words) and words[-1] not in _PLACES and not _IN_VARIABLES.isdisjoint(words)


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", _CAMEL.sub("_", name).lower()) if word]


class Redactor:
    """Replaces what it knows as a secret by `***`."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` shorter than SHORTEST are left alone."""
        spellings = {form for secret in secrets if len(secret) >= SHORTEST for form in _spellings(secret)} - {MASK}
        longest_first = sorted(spellings, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ, *settings: Any) -> Redactor:
        """Knows the secrets of the environment, and those in `settings`: mappings, models, lists of them."""
        found = [value.strip() for name, value in environment.items() if is_secret_variable(name) and not _is_place(value)]
        for part in settings:
            found += _secrets_in(part)
            found += [environment[name] for name in _named_variables(part) if name in environment]
        return cls(found)

    def text(self, text: str) -> str:
        """The text without secrets, and without the logins of URLs."""
        text = text if self._pattern is None else self._pattern.sub(MASK, text)
        return _URL_LOGIN.sub(f"{MASK}@", text) if "://" in text else text

    def data(self, value: Any) -> Any:
        """Plain data with secrets replaced, by their name and in every string."""
        if isinstance(value, Mapping):
            parts = cast("Mapping[Any, Any]", value).items()
            return {str(key): MASK if part not in (None, "") and _hides(str(key), part) else self.data(part) for key, part in parts}
        if isinstance(value, list | tuple):
            return [self.data(part) for part in cast("list[Any]", value)]
        if value is None or isinstance(value, bool | int | float):
            return value
        return self.text(str(value))

    def error(self, error: BaseException) -> None:
        """Replace secrets in the texts of an exception, its notes and its causes, in place."""
        seen: set[int] = set()
        todo: list[BaseException | None] = [error]
        while todo:
            found = todo.pop()
            if found is None or id(found) in seen:
                continue
            seen.add(id(found))
            found.args = tuple(self.text(part) if isinstance(part, str) else part for part in found.args)
            for name, value in list(vars(found).items()):
                if isinstance(value, str):
                    setattr(found, name, self.text(value))
            if hasattr(found, "__notes__"):
                found.__notes__ = [self.text(note) for note in found.__notes__]
            todo += [found.__cause__, found.__context__, *(found.exceptions if isinstance(found, BaseExceptionGroup) else ())]

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Exceptions that leave the block hold no secrets."""
        try:
            yield
        except BaseException as error:
            self.error(error)
            raise


def hidden_setting(value: Any, name: str = "") -> str | None:
    """The dotted name of the first setting that holds a mask in place of a secret, as in the config.yaml of a run."""
    if isinstance(value, Mapping):
        inner = ((str(key), part) for key, part in cast("Mapping[Any, Any]", value).items())
        found = (hidden_setting(part, f"{name}.{key}" if name else key) for key, part in inner)
    elif isinstance(value, list):
        found = (hidden_setting(part, name) for part in cast("list[Any]", value))
    else:
        return name if isinstance(value, str) and (value == MASK or f"://{MASK}@" in value) else None
    return next((place for place in found if place is not None), None)


def revealed(value: Any) -> Any:
    """Plain data of settings as their owner needs them in another process: SecretStr and its like as what they hide."""
    if isinstance(value, Mapping):
        return {key: revealed(part) for key, part in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [revealed(part) for part in cast("list[Any]", value)]
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


def _hides(name: str, value: Any) -> bool:
    """A switch under such a name is no secret: use_password true."""
    return is_secret_name(name) and not isinstance(value, bool)


def _secrets_in(value: Any, *, named: bool = False) -> Iterator[str]:
    """The strings that stand under the name of a secret, and what is of a secret type."""
    if hasattr(value, "get_secret_value"):
        value, named = value.get_secret_value(), True
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str | int | float):
        if named and not isinstance(value, bool):
            yield str(value)
    elif isinstance(value, Mapping):
        for key, part in cast("Mapping[Any, Any]", value).items():
            yield from _secrets_in(part, named=named or is_secret_name(str(key)))
    elif isinstance(value, list | tuple | set | frozenset):
        for part in cast("list[Any]", value):
            yield from _secrets_in(part, named=named)
    elif hasattr(type(value), "model_fields"):
        for field in type(value).model_fields:
            yield from _secrets_in(getattr(value, field), named=named or is_secret_name(field))


def _is_place(value: str) -> bool:
    """Whether a variable says where a secret lies: the path of a file or folder that is there."""
    return value.startswith("/") and os.path.exists(value)  # noqa: PTH110 - a value that is no path at all raises nothing here


def _named_variables(value: Any) -> Iterator[str]:
    """The environment variables that settings such as token_variable or api_key_env name."""
    if hasattr(type(value), "model_fields"):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[Any, Any]", value).items():
            *words, last = _words(str(key)) or [""]
            if isinstance(part, str) and last in ("variable", "var", "env") and _is_secret([word for word in words if word != "env"]):
                yield part
            yield from _named_variables(part)
    elif isinstance(value, list | tuple):
        for part in cast("list[Any]", value):
            yield from _named_variables(part)


def _spellings(secret: str) -> set[str]:
    """A secret as it is, and as it stands in JSON, in a URL and in Python's repr."""
    return {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], quote(secret, safe=""), repr(secret)[1:-1]}
