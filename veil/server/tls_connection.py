"""TLS under one client's connection, as a transport that the HTTP layer uses like a socket's own.

The event loop's own TLS tells of a connection only once its handshake is done: until then nobody could count it, bound its
time, or notice that it speaks plain HTTP. Here the connection is entered from its first moment on. It can also say that
nothing more will come and go on reading, as a plain socket can, so that a refusal reaches a client that is still sending.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from veil.server.http_connection import HttpConnection, Roster
from veil.server.http_reader import encode_refusal

_READ_BYTES: Final = 16 * 1024  # a record at the most
# Every handshake begins with a record of this type; no request of HTTP does.
_HANDSHAKE_RECORD: Final = 0x16
_SPEAKS_TLS: Final = "this port speaks TLS: use https://"

_HANDSHAKE, _OPEN, _ENDED, _CLOSING = range(4)


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """The protocol of a client's socket, and the transport of its HTTP connection."""

    __slots__ = (
        "_after_handshake",
        "_app",
        "_context",
        "_incoming",
        "_outgoing",
        "_pending",
        "_raw",
        "_roster",
        "_state",
        "_tls",
    )

    def __init__(self, roster: Roster, context: ssl.SSLContext) -> None:
        self._roster = roster
        self._context = context
        self._app = HttpConnection(roster)
        self._state = _HANDSHAKE
        self._tls: ssl.SSLObject | None = None  # made with the first byte: those who send none cost little
        self._pending = b""  # written before the handshake was done
        self._after_handshake: Callable[[], None] | None = None

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._app.connection_made(self)
        if self._state == _HANDSHAKE and self._after_handshake is None:
            # At rest as far as HTTP goes, but not for as long as a client that has proved to speak TLS.
            self._app.deadline_s = self._roster.loop.time() + self._roster.limits.header_deadline_s

    def data_received(self, data: bytes) -> None:
        if self._state > _OPEN:
            return  # read and dropped, as HttpConnection does after its last answer
        tls = self._tls
        if tls is None:
            if data[0] != _HANDSHAKE_RECORD:
                self._refuse_plain(data)
                return
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(data)
        has_ended = False
        pieces: list[bytes] = []
        try:
            if self._state == _HANDSHAKE:
                tls.do_handshake()
                self._begin()
            # Asked only while there is something: an exception that says there is not costs as much as to decrypt.
            while self._incoming.pending and not has_ended:
                piece = tls.read(_READ_BYTES)
                pieces.append(piece)
                has_ended = not piece  # the client has said that it will send no more
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()
        if pieces and self._state == _OPEN:
            self._app.data_received(b"".join(pieces))
        if has_ended and self._state < _CLOSING:
            self._app.eof_received()
            self.close()

    def eof_received(self) -> None:
        self._app.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _CLOSING
        self._after_handshake = None
        app = self._app
        del self._app  # it refers to us: memory is freed now, not at a collection
        app.connection_lost(exc)

    def pause_writing(self) -> None:
        self._app.pause_writing()

    def resume_writing(self) -> None:
        self._app.resume_writing()

    # ---- called by the HTTP connection

    def write(self, data: Any) -> None:
        if self._state == _HANDSHAKE:
            self._pending += data
        elif self._state == _OPEN and self._tls is not None:
            try:
                self._tls.write(data)
            except ssl.SSLError as error:
                self._fail(error)
            else:
                self._flush()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Tell the client that nothing more will come; what it still sends is read and dropped."""
        if self._state == _HANDSHAKE:
            self._after_handshake = self.write_eof
        elif self._state == _OPEN:
            self._state = _ENDED
            self._notify_close()
            if not self._raw.is_closing():
                self._raw.write_eof()

    def close(self) -> None:
        if self._state == _HANDSHAKE and self._pending:
            self._after_handshake = self.close
            return
        if self._state == _OPEN:
            self._notify_close()
        is_unknown = self._state == _HANDSHAKE
        self._state = _CLOSING
        if is_unknown:
            self._raw.abort()  # there is nobody yet to take leave of
        else:
            self._raw.close()

    def abort(self) -> None:
        self._state = _CLOSING
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._state == _CLOSING or self._raw.is_closing()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size() + len(self._pending)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default)

    # ---- within

    def _begin(self) -> None:
        self._state = _OPEN
        if self._pending:
            pending, self._pending = self._pending, b""
            self.write(pending)
        if self._after_handshake is not None:
            self._after_handshake()
        else:
            self._app.deadline_s = self._roster.loop.time() + self._roster.limits.idle_s

    def _flush(self) -> None:
        # What is encrypted goes to the socket's own buffer at once: its limits are those of the answers.
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def _notify_close(self) -> None:
        assert self._tls is not None
        # It says so, and then wants to hear the same from the client; that is not waited for.
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        self._flush()

    def _refuse_plain(self, data: bytes) -> None:
        if (
            data[:1].isalpha() and data[:1].isupper()
        ):  # the method of a request: this client can read an answer
            self._raw.write(encode_refusal(400, _SPEAKS_TLS))
        self._roster.note(
            "no TLS", f"{self._peer()} does not speak TLS at this port; its URL must begin with https://"
        )
        self._linger()

    def _fail(self, error: ssl.SSLError) -> None:
        if self._state == _HANDSHAKE:
            reason = (error.reason or str(error)).lower().replace("_", " ")
            self._roster.note(reason, f"the TLS handshake with {self._peer()} failed: {reason}")
        self._flush()  # the alert that tells the client why
        self._linger()

    def _peer(self) -> str:
        peer = self._raw.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else "a client"

    def _linger(self) -> None:
        """End our side, and read on for a moment: bytes that nobody has read would turn the end into a reset."""
        self._app.eof_received()
        self._state = _ENDED
        self._app.deadline_s = self._roster.loop.time() + self._roster.limits.linger_s
        if not self._raw.is_closing():
            self._raw.write_eof()
