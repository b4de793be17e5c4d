"""One client's connection: requests in, answers out, in order and within the limits.

At most one request of a connection runs at a time. What the client sends behind it is kept as bytes,
unparsed, up to a bound at which reading stops; so a pipelining client costs little more memory than a
patient one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

from veil.server.http_limits import Capacity, HttpLimits
from veil.server.http_reader import (
    BODY,
    CLOSES,
    CONTINUE,
    HEAD,
    RESTING,
    SPEAKS_PLAIN,
    HttpRefusal,
    RequestReader,
    encode_answer,
    encode_refusal,
    encode_stream_head,
)
from veil.wire.exchange import Handler, Request, Response

_log = logging.getLogger(__name__)

_NEVER = float("inf")
# Beyond this, reading stops. Below it, it goes on behind a running request: only so is a client seen to go.
_HELD_BYTES_MAX = 64 * 1024
# Smaller bodies and answers are not counted against the total: connections_max bounds them well enough.
_LARGE_BYTES = 64 * 1024

# What any client can bring about is logged at most this often, each kind by itself.
_NOTE_EVERY_S = 60.0

# Beyond these a worker goes when it is done: a burst leaves no crowd behind.
_IDLE_WORKERS_MAX = 256

_OPEN, _LEAVING, _GONE = range(3)


# ---- what connections share


class ServerState:
    """What the connections of one listener share; made by the server, used by its connections."""

    def __init__(
        self, handler: Handler, limits: HttpLimits, capacity: Capacity, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.capacity = capacity
        self.loop = loop
        self.connections: set[HttpConnection] = set()
        self.closing = False
        self.emptied = asyncio.Event()
        self.idle_workers: list[RequestWorker] = []
        self._noted_s: dict[str, float] = {}  # when a kind of mistake was logged last; kinds are few

    def enter(self, connection: HttpConnection) -> bool:
        """Take the newcomer in, in place of the longest idle one if need be; False if it must be refused."""
        self.connections.add(connection)
        capacity, limits = self.capacity, self.limits
        capacity.connection_count += 1
        if capacity.is_full():
            oldest = next(iter(capacity.idle), None)
            if oldest is None or capacity.idle[oldest] + limits.idle_spared_s > self.loop.time():
                return False
            self.vacate(oldest)
            oldest.abort()
        capacity.seats_taken += 1
        connection.seated = True
        return True

    def vacate(self, connection: HttpConnection) -> None:
        """Free the connection's seat, once."""
        if connection.seated:
            connection.seated = False
            self.capacity.seats_taken -= 1

    def leave(self, connection: HttpConnection) -> None:
        """Forget the connection: it is closed and its request has ended."""
        self.vacate(connection)
        if connection in self.connections:
            self.connections.discard(connection)
            self.capacity.lose()
        self.capacity.idle.pop(connection, None)
        if not self.connections:
            self.emptied.set()

    def worker(self) -> RequestWorker:
        while self.idle_workers:
            worker = self.idle_workers.pop()
            if worker.is_free:
                return worker
        return RequestWorker(self)

    def dismiss_workers(self) -> None:
        """Let those go that have nothing to do; the others go when they are done."""
        for worker in self.idle_workers:
            worker.task.cancel()
        self.idle_workers.clear()

    def note(self, kind: str, text: str) -> None:
        """Log a mistake of a client's, unless one of its kind was logged within the last minute."""
        now_s = self.loop.time()
        last_s = self._noted_s.get(kind)
        if last_s is None or now_s >= last_s + _NOTE_EVERY_S:
            self._noted_s[kind] = now_s
            _log.warning("%s", text)


class RequestWorker:
    """A task that answers one request after another, of whichever connection.

    A task of its own for each request costs more than it is worth, in a profile about 4 % of a small one: asyncio enters every
    new task in a set of weak references, and takes it out again.
    """

    __slots__ = ("_is_serving", "_job", "_server", "_wake", "_was_cancelled", "task")

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._job: tuple[HttpConnection, Request, bytes] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._is_serving = self._was_cancelled = False
        self.task = server.loop.create_task(self._run())

    def serve(self, connection: HttpConnection, request: Request, persistence: bytes) -> None:
        """Answer the request, from the loop's next turn on."""
        self._job = connection, request, persistence
        if self._wake is not None:
            self._wake.set_result(None)

    def cancel(self) -> None:
        """Give the request up: nobody waits for its answer."""
        if self._is_serving:
            self._was_cancelled = True
            self.task.cancel()
        elif self._job is not None:  # not begun yet: a task that is cancelled then would never begin
            connection, self._job = self._job[0], None
            connection.end_request()

    @property
    def is_free(self) -> bool:
        """Whether it waits for a request: one that was cancelled is about to end."""
        return self._wake is not None and not self._wake.done()

    async def _run(self) -> None:
        server = self._server
        while True:
            if self._job is None:
                if server.closing or len(server.idle_workers) >= _IDLE_WORKERS_MAX:
                    return
                server.idle_workers.append(self)
                self._wake = server.loop.create_future()
                await self._wake
                self._wake = None
                continue
            (connection, request, persistence), self._job = self._job, None
            self._is_serving = True
            try:
                await connection.serve(request, persistence)
            except asyncio.CancelledError:
                if not self._was_cancelled:
                    raise
            finally:
                del connection, request  # until the next one comes
                if self._was_cancelled:
                    while self.task.uncancel():
                        pass
                self._is_serving = self._was_cancelled = False


# ---- one connection


class HttpConnection(asyncio.Protocol):
    """Serves one client; the server holds what it shares with the others."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._state = _OPEN
        self._worker: RequestWorker | None = None  # while a request is being answered
        self._held = bytearray()  # received behind the request that runs
        self._body_bytes = 0  # of the request, as counted in the capacity
        self._answer_bytes = 0  # not taken by the client, as counted there
        self._reading = True
        self._write_paused = False
        self._undrained_bytes = 0
        self._streaming = False
        self._drained: asyncio.Future[None] | None = None  # what a stream waits for while its client is slow
        self._timed_phase: int | None = None  # what the deadline is for
        self.deadline_s = _NEVER
        self.seated = False  # kept by the server

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._server.limits.write_buffer_bytes_max)
        peer = transport.get_extra_info("peername")
        self._reader = RequestReader(self._server.limits, str(peer[0]) if isinstance(peer, tuple) else "")
        server = self._server
        if not server.enter(self):
            if server.capacity.overrun():
                self.abort()
            else:
                self._refuse(HttpRefusal(503, "too many connections"))
        elif server.closing:
            self._leave()
        else:
            self._go_on()

    def data_received(self, data: bytes) -> None:
        # Bytes after the last answer are read and dropped: closing a socket with unread bytes resets it, and
        # a reset can overtake the answer.
        if self._state != _OPEN or self._reader.finished:
            return
        if self._worker is None and not self._write_paused:
            if self._timed_phase == RESTING:
                self._server.capacity.idle.pop(self, None)
            self._read(data)
        else:
            self._held += data
            self._read_or_pause()

    def eof_received(self) -> None:
        # Half-closed counts as gone: a message must not be claimed for a client that may not be there, and
        # those who wait keep their side open. Returning None makes the transport close.
        if self._worker is not None:
            self._worker.cancel()
        self._settle_to_leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle_to_leave()
        self._state = _GONE
        self.deadline_s = _NEVER
        if self._worker is not None:
            self._worker.cancel()  # the server is left when it has ended, and nothing is counted any more
        else:
            self._count_answer(0)
            self._server.leave(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._undrained_bytes = self._transport.get_write_buffer_size()
        self._count_answer(self._undrained_bytes)
        self.deadline_s = self._server.loop.time() + self._server.limits.write_deadline_s
        self._read_or_pause()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._count_answer(0)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._state != _OPEN:
            return
        self._timed_phase, self.deadline_s = None, _NEVER
        self._read_or_pause()
        if self._worker is None:
            self._go_on()

    # ---- called by the server

    def expire(self, now_s: float) -> None:
        if self._write_paused or self._state == _LEAVING:
            undrained_bytes = self._transport.get_write_buffer_size()
            if undrained_bytes < self._undrained_bytes:  # slow, but it takes the answer
                self._undrained_bytes = undrained_bytes
                self.deadline_s = now_s + self._server.limits.write_deadline_s
            else:
                self.abort()
        elif self._reader.phase == BODY or (self._reader.phase == HEAD and self._reader.target_seen):
            self._refuse(HttpRefusal(408, "the request did not arrive in time"))
        else:
            # Nothing was asked, so nothing is said: the client could take it for its next request's answer.
            self._leave()

    def retire(self) -> None:
        """Close now if no request has begun, otherwise after its answer; a stream has no end of its own and ends now."""
        if self._streaming and self._worker is not None:
            self._worker.cancel()
        elif (
            self._state == _OPEN and self._worker is None and self._reader.phase == RESTING and not self._held
        ):
            self._leave()

    def abort(self) -> None:
        self._settle_to_leave()
        if self._worker is not None:
            self._worker.cancel()
        self._transport.abort()

    # ---- requests

    def _read(self, data: bytes | bytearray) -> None:
        reader = self._reader
        while True:
            data = reader.feed(data)
            if reader.body_bytes > _LARGE_BYTES and not self._count_body(reader.body_bytes):
                reader.refusal = HttpRefusal(503, "too many large requests and unread answers at once")
            if reader.ready or reader.refusal is not None:
                if data and not reader.finished:
                    self._held += data
                    self._read_or_pause()
                break
            if not data:
                break
        self._go_on()

    def _go_on(self) -> None:
        """The next request that waits, or the bytes behind it, or wait for more."""
        if self._write_paused:
            return  # resume_writing comes back here
        reader = self._reader
        if reader.ready:
            request, persistence = reader.ready.pop(0)
            self._timed_phase, self.deadline_s = None, _NEVER
            request.has_room = self._has_room_for_answer
            self._worker = self._server.worker()
            self._worker.serve(self, request, persistence)
        elif reader.refusal is not None:
            self._refuse(reader.refusal)
        elif self._held:
            held, self._held = self._held, bytearray()
            self._read_or_pause()
            self._read(held)
        else:
            if reader.awaits_continue:
                reader.awaits_continue = False
                self._transport.write(CONTINUE)
            if self._timed_phase != reader.phase:
                self._time(reader.phase)

    def _time(self, phase: int) -> None:
        # Once for each phase, not at each byte: a client that trickles is late all the same.
        server, self._timed_phase = self._server, phase
        limits = server.limits
        if phase == RESTING:
            server.capacity.idle[self] = now_s = server.loop.time()
            self.deadline_s = now_s + limits.idle_s
        elif phase == HEAD:
            self.deadline_s = server.loop.time() + limits.header_deadline_s
        else:
            self.deadline_s = server.loop.time() + limits.body_deadline_s

    def _read_or_pause(self) -> None:
        wanted = len(self._held) < _HELD_BYTES_MAX and not self._write_paused
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _count_body(self, body_bytes: int) -> bool:
        capacity = self._server.capacity
        capacity.held_bytes += body_bytes - self._body_bytes
        self._body_bytes = body_bytes
        return capacity.has_room_for(0)

    def _count_answer(self, answer_bytes: int) -> None:
        self._server.capacity.held_bytes += answer_bytes - self._answer_bytes
        self._answer_bytes = answer_bytes

    # ---- answers

    async def serve(self, request: Request, persistence: bytes) -> None:
        response: Response | None = None
        body = b""  # behind the answer; of a small one it is in it
        try:
            response = await self._server.handler(request)
            if response.stream is not None:
                await self._serve_stream(response, response.stream, request.method)
                return
            if self._server.closing:
                persistence = CLOSES
            if len(response.body) > _LARGE_BYTES and not self._has_room_for_answer(len(response.body)):
                self._take_back(response)
                answer, persistence, response = encode_refusal(503, "too many unread answers"), CLOSES, None
            elif len(response.body) > _LARGE_BYTES and request.method != "HEAD":
                # Written for itself: joined to its head it would be copied, while everybody else waits.
                answer, body = encode_answer(response, "HEAD", persistence), response.body
            else:
                answer = encode_answer(response, request.method, persistence)
            if response is not None and response.delivering is not None:
                await response.delivering()
        except asyncio.CancelledError:
            self._take_back(response)
            self.end_request()
            if self._state == _OPEN:  # the handler's own doing: nobody else would end the connection
                self.abort()
            raise
        except Exception:
            _log.exception("the handler failed on %s %s", request.method, request.path)
            self._take_back(response)
            answer, persistence, response = encode_refusal(500, "internal error"), CLOSES, None
        self.end_request()
        if self._state != _OPEN or self._transport.is_closing():
            self._take_back(response)
            return
        self._transport.write(answer)
        if body:
            self._transport.write(body)
        if self._write_paused:
            # The transport keeps it whole until its last byte is taken.
            self._count_answer(len(answer) + len(body))
        if persistence is CLOSES:
            self._leave()
        else:
            self._go_on()

    def _has_room_for_answer(self, size_bytes: int) -> bool:
        # Its own body is still counted, and is let go with the answer.
        has_room = self._server.capacity.has_room_for(size_bytes - self._answer_bytes - self._body_bytes)
        if has_room:
            self._count_answer(size_bytes)
        return has_room

    async def _serve_stream(self, response: Response, stream: AsyncIterator[bytes], method: str) -> None:
        """Write what the stream yields for as long as the client is there, no faster than it takes it."""
        self._streaming = True
        try:
            if self._state == _OPEN and not self._server.closing:
                self._transport.write(encode_stream_head(response))
                if method != "HEAD":
                    async for piece in stream:
                        self._transport.write(piece)
                        await self._written()
        except asyncio.CancelledError:
            pass  # the client is gone, or the server stops: the stream is over either way
        except Exception:
            _log.exception("a stream failed")
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                with suppress(Exception):
                    await close()
            self._streaming = False
            self.end_request()
            if self._state == _OPEN:
                self._leave()

    async def _written(self) -> None:
        if self._write_paused:
            self._drained = self._server.loop.create_future()
            try:
                await self._drained
            finally:
                self._drained = None

    def end_request(self) -> None:
        self._worker = None
        if self._body_bytes:
            self._count_body(0)
        if self._answer_bytes and (not self._write_paused or self._state == _GONE):
            self._count_answer(0)
        if self._state == _GONE:
            self._server.leave(self)

    @staticmethod
    def _take_back(response: Response | None) -> None:
        if response is None or response.undelivered is None:
            return
        try:
            response.undelivered()
        except Exception:
            _log.exception("taking back an answer that was not delivered failed")

    # ---- the end

    def _refuse(self, refusal: HttpRefusal) -> None:
        """Answer with the refusal and close, reading on for a moment so that the client gets to see it."""
        self._settle_to_leave()
        if self._transport.is_closing():
            return
        if str(refusal) == SPEAKS_PLAIN:
            self._server.note("TLS", f"{self._reader.peer} speaks TLS at a port that does not; use http://")
        self._transport.write(encode_refusal(refusal.status, str(refusal)))
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self.deadline_s = self._server.loop.time() + self._server.limits.linger_s
            self._read_or_pause()
        else:
            self._transport.close()

    def _leave(self) -> None:
        """Close once everything written has been sent."""
        self._settle_to_leave()
        self._transport.close()

    def _settle_to_leave(self) -> None:
        if self._state != _OPEN:
            return
        self._state = _LEAVING
        self._server.capacity.idle.pop(self, None)
        self._reader.release()
        self._held.clear()
        if self._worker is None:
            self._count_body(0)
        self._undrained_bytes = self._transport.get_write_buffer_size()
        self.deadline_s = self._server.loop.time() + self._server.limits.write_deadline_s
