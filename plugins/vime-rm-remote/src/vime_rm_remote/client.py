"""One connection pool for each event loop, and requests that are repeated where that may help."""

from __future__ import annotations

import asyncio
import email.utils
import io
import sys
import time
import weakref
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from vime.api import VimeError, reward_limit_paused

if TYPE_CHECKING:
    import aiohttp

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be gone at the next attempt."""
MOST_BYTES = 1 << 20
"""Longest answer that is read. A group of 1,000 samples with ten numbers each takes a fifth of it."""
SHOWN = 200
"""Characters of an answer that an error shows."""


class RemoteRewardError(VimeError):
    """The reward service did not give a reward: names its address, what came, and the number of attempts."""


class AttemptError(Exception):
    """One attempt failed in a way that another may not; `after` is how long the service asks to wait, in seconds."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


@dataclass(frozen=True)
class Limits:
    """How long and how often."""

    timeout: float | None
    """Seconds for one attempt, None for none of its own."""
    retries: int
    backoff: float
    """Seconds before the first repetition, doubled at each, with jitter."""
    longest_backoff: float
    deadline: float
    """Seconds for all attempts together, without the waits for a connection: a wait that would not fit in ends them at once."""


@dataclass
class Turns:
    """The session of one event loop, the connections that are still free there, and what closes it."""

    session: aiohttp.ClientSession
    free: asyncio.Semaphore
    holder: AsyncGenerator[None, None]


class Client:
    """Posts JSON. `headers` go with each request; nothing of the environment does: no proxy settings, no .netrc, no cookies."""

    def __init__(self, *, connections: int | None, headers: dict[str, str]) -> None:
        self.connections = connections
        self.headers = headers
        self._sessions: dict[asyncio.AbstractEventLoop, Turns] = {}

    async def post(self, url: str, body: bytes, limits: Limits, *, connections: int) -> tuple[int, bytes]:
        """Status and body of the answer to `body`, after at most 1 + `limits.retries` attempts.

        `connections` bounds those that are open at once where the client has no bound of its own. While a request waits
        for one of these, neither --reward-timeout nor the time of an attempt runs.
        Raises RemoteRewardError where no attempt brought an answer with status 2xx.
        """
        with reward_limit_paused():
            if "aiohttp" not in sys.modules:
                await asyncio.to_thread(_import_all)  # half a second, in which the loop goes on
            turns = await self._turns(connections)
        import tenacity

        start, attempts, waited = time.monotonic(), 0, 0.0
        backoff = tenacity.wait_random_exponential(multiplier=limits.backoff, max=limits.longest_backoff)

        def wait(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.after if isinstance(error, AttemptError) else None
            jitter = backoff(state)
            return limits.backoff / 2 + jitter if asked is None else asked + jitter

        def over(state: tenacity.RetryCallState) -> bool:
            return state.attempt_number > limits.retries or time.monotonic() - start - waited + state.upcoming_sleep > limits.deadline

        try:
            async for attempt in tenacity.AsyncRetrying(
                stop=over, wait=wait, retry=tenacity.retry_if_exception_type(AttemptError), sleep=asyncio.sleep, reraise=True
            ):
                with attempt:
                    attempts += 1
                    with reward_limit_paused():
                        asked = time.monotonic()
                        await turns.free.acquire()
                        waited += time.monotonic() - asked
                    try:
                        return await self._attempt(turns.session, url, body, limits.timeout)
                    finally:
                        turns.free.release()
        except AttemptError as error:
            tried = "tried once" if attempts == 1 else f"tried {attempts} times"
            if attempts <= limits.retries and error.after:
                tried += f"; it asks to wait {error.after:g} s, longer than --reward-timeout leaves"
            raise RemoteRewardError(
                f"{shown_url(url)}: {error} ({tried})",
                hint="look after the reward service; --on-reward-error drop|zero goes on without these rewards",
            ) from error.__cause__
        raise AssertionError("either an attempt returned or it raised")

    async def _attempt(self, session: aiohttp.ClientSession, url: str, body: bytes, timeout: float | None) -> tuple[int, bytes]:  # noqa: ASYNC109
        import aiohttp

        try:
            async with session.post(
                url, data=io.BytesIO(body), allow_redirects=False, timeout=aiohttp.ClientTimeout(total=timeout)
            ) as answer:
                text = await self._read(answer, url)
                if answer.status in AGAIN:
                    raise AttemptError(f"status {answer.status}{quoted(text)}", _seconds(answer.headers.get("Retry-After")))
                if answer.status // 100 != 2:
                    raise self._refused(answer, url, text)
                return answer.status, text
        except TimeoutError as error:
            raise AttemptError(f"no answer within {timeout:g} s" if timeout is not None else "no answer in time") from error
        except (aiohttp.InvalidURL, ValueError) as error:
            raise RemoteRewardError(f"{shown_url(url)}: no usable address: {error}", hint="--rm-url http://HOST:PORT/PATH") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            reason = str(error).replace(url, shown_url(url)) or "the connection was closed"
            raise AttemptError(f"{type(error).__name__}: {' '.join(reason.split())[:SHOWN]}") from error

    async def _read(self, answer: aiohttp.ClientResponse, url: str) -> bytes:
        """The body, at most MOST_BYTES of it, however it is compressed."""
        parts, size = [], 0
        async for part in answer.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                answer.close()
                start = quoted(b"".join(parts))
                raise RemoteRewardError(f"{shown_url(url)}: status {answer.status}, an answer of more than {MOST_BYTES} bytes{start}")
        return b"".join(parts)

    def _refused(self, answer: aiohttp.ClientResponse, url: str, text: bytes) -> RemoteRewardError:
        message = f"{shown_url(url)}: status {answer.status}"
        if answer.status // 100 == 3:
            target = shown_url(answer.headers.get("Location", "nowhere"))
            return RemoteRewardError(
                f"{message}, a redirect to {target}", hint="redirects are not followed: give the final address to --rm-url"
            )
        if answer.status in (401, 403):
            hint = "it asks for a token: --set remote.token_variable=NAME, the environment variable that holds it"
            return RemoteRewardError(message + quoted(text), hint=hint)
        return RemoteRewardError(message + quoted(text), hint="the service refuses what it was sent: see its own log")

    async def _turns(self, connections: int) -> Turns:
        """The session of the running event loop, made at the first call. It ends with the loop, or with the client."""
        import aiohttp

        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            for other in [other for other in self._sessions if other.is_closed()]:
                del self._sessions[other]
            most = self.connections or connections
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=most),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity", **self.headers},
            )
            holder = _held(session, loop, weakref.ref(self))
            self._sessions[loop] = Turns(session, asyncio.Semaphore(most), holder)
            await anext(holder)
        return self._sessions[loop]


async def _held(session: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop, client: weakref.ref[Client]) -> AsyncGenerator[None, None]:
    """Closes the session at the end of its loop: `loop.shutdown_asyncgens`, which asyncio.run calls too, ends generators that wait."""
    try:
        yield
    finally:
        owner = client()
        if owner is not None:
            owner._sessions.pop(loop, None)
        await session.close()


def _import_all() -> None:
    import aiohttp  # noqa: F401
    import tenacity  # noqa: F401


def shown_url(url: str) -> str:
    """An address without what may be secret in it: user, password and query."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return url.partition("?")[0].rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def quoted(body: bytes) -> str:
    """The first SHOWN characters of an answer on one line, for the end of a message."""
    text = " ".join(body[: 8 * SHOWN].decode("utf-8", "replace").split())
    return f": {text[:SHOWN]!r}" if text else ", without a body"


def _seconds(header: Any) -> float | None:
    """The seconds that a Retry-After header asks for: a number of them, or a date."""
    if not header:
        return None
    try:
        return max(0.0, float(int(str(header).strip())))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(str(header)).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None
