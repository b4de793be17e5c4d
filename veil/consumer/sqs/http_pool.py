"""The connections to one endpoint, kept alive and used again."""

from __future__ import annotations

import asyncio
import ssl

from veil.consumer.sqs.endpoint import Endpoint
from veil.consumer.sqs.http_connection import LINGER_S, Heir, HttpAnswer, HttpConnection, NoAnswer
from veil.signing.client_tls import problem_in_words

# Shorter than services wait before they close a connection at rest (Veil: 75 s).
REST_S_MAX = 50.0


class HttpPool:
    """At most `connections` exchanges at a time; more wait for their turn. Redirects and proxies are not followed."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        connections: int,
        connect_timeout_s: float,
        ssl_context: ssl.SSLContext | None,
        bundle: str | None = None,
    ) -> None:
        """`bundle` is the file that the context trusts, to be named where that was not enough."""
        self._endpoint, self._connections = endpoint, connections
        self._connect_timeout_s, self._ssl_context, self._bundle = connect_timeout_s, ssl_context, bundle
        self._turns = asyncio.Semaphore(connections)
        self._resting: list[HttpConnection] = []  # the last one used is the first one taken
        self._open: set[HttpConnection] = set()
        self._ending = self._closed = False

    async def exchange(
        self,
        request: bytes,
        *,
        timeout_s: float,
        answer_bytes_max: int,
        rest_s_max: float = REST_S_MAX,
        heir: Heir | None = None,
    ) -> HttpAnswer:
        """The answer, or NoAnswer; on a connection that has not rested for longer than `rest_s_max` (0: on a new one)."""
        if self._turns.locked():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._turns.acquire()
            except TimeoutError:
                raise NoAnswer(f"all {self._connections} connections were busy for {timeout_s:g} s") from None
        else:
            await self._turns.acquire()
        try:
            connection = self._rested(rest_s_max) or await self._connected()
            try:
                if self._ending and heir is not None:
                    raise NoAnswer(
                        "the client was closed"
                    )  # nobody would be there to give back what it claims
                return await connection.exchange(
                    request, timeout_s=timeout_s, answer_bytes_max=answer_bytes_max, heir=heir
                )
            finally:
                if connection.reusable and not self._closed:
                    self._resting.append(connection)
        finally:
            self._turns.release()

    async def abandon(self) -> None:
        """End every exchange; returns when the answers that were on their way have come to their heirs.

        From now on there are no exchanges with heirs any more; others go on being possible.
        """
        self._ending = True
        ending = [*self._open]
        for connection in ending:
            connection.abandon()
        if ending:  # bounded: a connection that cannot even be cut is not ours to wait for
            await asyncio.wait([connection.gone for connection in ending], timeout=2 * LINGER_S)

    async def close(self) -> None:
        """Close every connection, for good."""
        self._closed = True
        await self.abandon()

    def _rested(self, rest_s_max: float) -> HttpConnection | None:
        now_s = asyncio.get_running_loop().time()
        while self._resting:
            rest_s = now_s - self._resting[-1].rested_since_s
            if rest_s_max <= rest_s < REST_S_MAX:
                return None  # the rest of them have rested longer still
            connection = self._resting.pop()
            if rest_s >= REST_S_MAX:
                connection.abort()
            elif connection.reusable:
                return connection
        return None

    async def _connected(self) -> HttpConnection:
        endpoint, loop = self._endpoint, asyncio.get_running_loop()
        connection = HttpConnection(loop, self._lost)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await loop.create_connection(
                    lambda: connection, endpoint.host, endpoint.port, ssl=self._ssl_context
                )
        except TimeoutError:
            raise NoAnswer(f"no connection within {self._connect_timeout_s:g} s") from None
        except (OSError, ssl.SSLError) as error:
            in_words = problem_in_words(error, endpoint.host, self._bundle)
            raise NoAnswer(in_words or _in_words(error)) from None
        if self._closed:
            connection.abort()
            raise NoAnswer("the client was closed")
        self._open.add(connection)
        return connection

    def _lost(self, connection: HttpConnection) -> None:
        if connection in self._resting:
            self._resting.remove(connection)
        self._open.discard(connection)


def _in_words(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return error.strerror or str(error) or type(error).__name__
