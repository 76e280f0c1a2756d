"""The entry point `remote`: a service at --rm-url scores the samples."""

from __future__ import annotations

import os
import re
from typing import Any

from pydantic import Field, field_validator

from vime.api import ConfigError, Sample, hookimpl
from vime.api import Settings as BaseSettings
from vime_rm_remote.client import Client, Limits, RemoteRewardError, quoted, shown_url
from vime_rm_remote.payload import Reward, decode, encode


class Remote:
    """Posts each sample, or with --group-rm each group, to --rm-url and takes the reward out of the answer."""

    class Settings(BaseSettings):
        timeout: float | None = Field(default=None, gt=0)
        """Seconds for one attempt, after which it is repeated. null: no limit but --reward-timeout, which all attempts share."""
        retries: int = Field(default=3, ge=0)
        """Repetitions of a request after a lost connection, a time-out, or status 408, 425, 429, 500, 502, 503 or 504."""
        backoff: float = Field(default=0.25, gt=0, allow_inf_nan=False)
        """Seconds before the first repetition, doubled at each, with jitter. A Retry-After header that asks for more is honoured."""
        longest_backoff: float = Field(default=5.0, gt=0, allow_inf_nan=False)
        """Bound of that wait in seconds."""
        connections: int | None = Field(default=None, ge=1)
        """Connections that are open at once. null: as many as --reward-concurrency allows calls."""
        token_variable: str | None = None
        """Name of an environment variable that holds the token of the service, sent as `Authorization: Bearer TOKEN`. The token itself is
        never written anywhere."""
        token_header: str = "Authorization"
        """The header that carries the token; any other than Authorization carries it alone, without `Bearer`."""

        @field_validator("token_variable")
        @classmethod
        def _is_set(cls, name: str | None) -> str | None:
            if name is None:
                return None
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError("it takes the name of an environment variable, never the token itself")
            token = os.environ.get(name, "").strip()
            if not token:
                raise ValueError("there is no such environment variable, or it is empty")
            if not token.isascii() or not token.isprintable():
                raise ValueError("the environment variable holds characters that a header cannot have")
            return name

        @field_validator("token_header")
        @classmethod
        def _is_a_header(cls, name: str) -> str:
            if not re.fullmatch(r"[A-Za-z0-9-]+", name):
                raise ValueError("it takes the name of a header, such as X-Api-Key")
            return name

    def __init__(self, settings: Remote.Settings) -> None:
        self.settings = settings
        self.client = Client(connections=settings.connections, headers=_token_headers(settings))

    def check_args(self, args: Any) -> None:
        """Refuse a run whose --rm-url is missing or is no address. Raises ConfigError."""
        checked_url(args)

    @hookimpl
    async def custom_rm(self, args: Any, sample: Sample | None, samples: list[Sample] | None) -> Reward | list[Reward]:
        """The reward of the sample, or of each sample of the group.

        Raises RemoteRewardError, with the address, the status and the start of the answer, where the service gives none.
        """
        group = samples is not None
        members = samples if samples is not None else [sample] if sample is not None else []
        url, settings = checked_url(args), self.settings
        limits = Limits(settings.timeout, settings.retries, settings.backoff, settings.longest_backoff, args.reward_timeout)
        status, answer = await self.client.post(url, encode(members, group=group), limits, connections=args.reward_concurrency)
        try:
            return decode(answer, len(members) if group else None)
        except ValueError as error:
            raise RemoteRewardError(
                f"{shown_url(url)}: status {status}, {error}{quoted(answer)}",
                hint="the service has to answer with a number or an object of numbers" + (", in a list for a group" if group else ""),
            ) from None


def checked_url(args: Any) -> str:
    """--rm-url. Raises ConfigError where it is missing or is no address of a service."""
    from urllib.parse import urlsplit

    url = args.rm_url
    hint = "--rm-url http://HOST:PORT/PATH, the service that scores the samples"
    if not url:
        raise ConfigError("plugin 'remote' has no address to ask: --rm-url is not set", hint=hint)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"--rm-url {shown_url(url)}: no address: {error}", hint=hint) from None
    if parts.scheme not in ("http", "https") or not host or any(character.isspace() for character in url):
        raise ConfigError(
            f"--rm-url {shown_url(url)}: expected an address that starts with http:// or https:// and names a host", hint=hint
        )
    return url


def _token_headers(settings: Remote.Settings) -> dict[str, str]:
    if settings.token_variable is None:
        return {}
    token = os.environ[settings.token_variable].strip()
    bearer = settings.token_header.lower() == "authorization" and " " not in token
    return {settings.token_header: f"Bearer {token}" if bearer else token}
