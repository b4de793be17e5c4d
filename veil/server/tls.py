"""The server's certificate, and TLS under one client's connection.

A pair of files is taken whole or not at all. Whatever is wrong with the files of a running server, the pair that it has stays
in effect, and one line says why.

The event loop's own TLS tells of a connection only once its handshake is done: until then nobody could count it, bound its
time, or notice that it speaks plain HTTP. Here the connection is entered from its first moment on. It can also say that
nothing more will come and go on reading, as a plain socket can, so that a refusal reaches a client that is still sending.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from veil.server.http_connection import HttpConnection, ServerState
from veil.server.http_reader import encode_refusal
from veil.server.settings import ServerSettingsError, Settings, read_file

_log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 2.0
_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"


class Certificate(NamedTuple):
    """What the server shows to its clients, as far as people want to know it."""

    names: tuple[str, ...]  # that clients may call it by
    expires: datetime | None  # None with a problem
    problem: str | None  # why clients will refuse it, whichever authority they trust

    @property
    def text(self) -> str:
        """One line about it."""
        if self.problem is not None:
            return f"a certificate that clients will refuse ({self.problem})"
        named = ", ".join(self.names[:4]) + (", …" if len(self.names) > 4 else "")
        return f"certificate of {named}, valid until {self.expires:%Y-%m-%d}"


class Tls:
    """The TLS context in effect; connections that are open keep the one that they began with."""

    def __init__(self, settings: Settings) -> None:
        """Reads the files; raises ServerSettingsError with the setting, its value and what was expected."""
        assert settings.tls_cert is not None
        assert settings.tls_key is not None
        self._cert, self._key, self._client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
        self._seen = self._looks()
        self.context, self.certificate = self._load()

    def current(self) -> ssl.SSLContext:
        return self.context

    def reload(self, why: str) -> None:
        """Read the files again, and say in the log what came of it."""
        self._seen = self._looks()
        try:
            self.context, self.certificate = self._load()
        except ServerSettingsError as problem:
            _log.error("%s: the certificate stays as it was: %s", why, problem)
            return
        _log.info("%s: %s, in effect", why, self.certificate.text)
        self.warn()

    def warn(self) -> None:
        """Say so in the log if clients will refuse the certificate."""
        if self.certificate.problem is not None:
            _log.warning("tls_cert=%s: clients will refuse it (%s)", self._cert, self.certificate.problem)

    async def watch(self) -> None:
        """Reload whenever the files have changed, until cancelled."""
        before = self._seen
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            # In a thread: the files may lie on a file system that hangs.
            looks = await asyncio.to_thread(self._looks)
            # Two files cannot be replaced at one instant: they are read once they have kept still for a moment.
            if looks == before and looks != self._seen:
                await asyncio.to_thread(self.reload, "the TLS files have changed")
            before = looks

    def _looks(self) -> tuple[object, ...]:
        return tuple(_look(path) for path in (self._cert, self._key, self._client_ca) if path is not None)

    def _load(self) -> tuple[ssl.SSLContext, Certificate]:
        chain = _read(self._cert, "tls_cert")
        if _CERTIFICATE not in chain:
            raise _refused("tls_cert", self._cert, "a certificate in PEM, the server's own first")
        key = _read(self._key, "tls_key", private=True)
        if "PRIVATE KEY-----" not in key:
            raise _refused("tls_key", self._key, "a private key in PEM")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_passphrase)
        except _EncryptedKey:
            raise _refused("tls_key", self._key, "a private key without a passphrase") from None
        except (ssl.SSLError, OSError) as problem:
            raise self._unusable_pair(chain, problem) from None
        certificate = _rehearse(context, chain)
        if self._client_ca is not None:
            authorities = _read(self._client_ca, "tls_client_ca")
            try:
                context.load_verify_locations(cadata=authorities)
            except (ssl.SSLError, ValueError):
                raise _refused(
                    "tls_client_ca", self._client_ca, "certificates of authorities in PEM"
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context, certificate

    def _unusable_pair(self, chain: str, problem: Exception) -> ServerSettingsError:
        reason = _reason(problem)
        if "key values mismatch" in reason or "key type mismatch" in reason:
            return _refused("tls_key", self._key, f"the private key of the certificate in {self._cert}")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=chain)
        except (ssl.SSLError, ValueError):
            return _refused("tls_cert", self._cert, f"certificates in PEM ({reason})")
        if "too small" in reason or "too weak" in reason:  # "ee key too small", "ca md too weak"
            return _refused("tls_cert", self._cert, f"a stronger certificate ({reason})")
        return _refused("tls_key", self._key, f"a private key in PEM ({reason})")


class _EncryptedKey(Exception):
    pass


def _no_passphrase() -> str:
    # Asked for only if the key is encrypted; without this OpenSSL would ask on the terminal, and wait.
    raise _EncryptedKey


def _read(path: Path, setting: str, *, private: bool = False) -> str:
    # Beside the blocks of PEM, which are ASCII, tools write names in any language; OpenSSL passes those over.
    return read_file(setting, path, private=private).decode("ascii", "ignore")


def _refused(setting: str, path: Path, expected: str) -> ServerSettingsError:
    return ServerSettingsError(f"{setting}={path}: expected {expected}")


def _reason(problem: Exception) -> str:
    named = problem.reason if isinstance(problem, ssl.SSLError) else None
    return (named or str(problem)).lower().replace("_", " ")


def _look(path: Path) -> object:
    try:
        about = path.stat()  # of what a link leads to: mounted secrets are replaced by turning a link
    except OSError as problem:
        return problem.errno
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def _rehearse(server: ssl.SSLContext, chain: str) -> Certificate:
    """Shake hands with ourselves, as a client that trusts this very certificate: what it objects to, every client will."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cadata=chain)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for _ in range(3):
            for end in ends:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLCertVerificationError as problem:
        return Certificate((), None, problem.verify_message)
    except ssl.SSLError as problem:
        return Certificate((), None, _reason(problem))
    shown: dict[str, Any] = dict(ends[0].getpeercert() or {})
    names = tuple(name for kind, name in shown.get("subjectAltName", ()) if kind in ("DNS", "IP Address"))
    if not names:
        return Certificate((), None, "it names no host in subjectAltName")
    return Certificate(names, datetime.fromtimestamp(ssl.cert_time_to_seconds(shown["notAfter"]), UTC), None)


_READ_BYTES: Final = 16 * 1024  # a record at the most
# Every handshake begins with a record of this type; no request of HTTP does.
_HANDSHAKE_RECORD: Final = 0x16
_SPEAKS_TLS: Final = "this port speaks TLS: use https://"

_HANDSHAKE, _OPEN, _ENDED, _CLOSING = range(4)


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """The protocol of a client's socket, and the transport of its HTTP connection."""

    def __init__(self, server: ServerState, context: ssl.SSLContext) -> None:
        self._server = server
        self._context = context
        self._app = HttpConnection(server)
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
            self._app.deadline_s = self._server.loop.time() + self._server.limits.header_deadline_s

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
            self._app.deadline_s = self._server.loop.time() + self._server.limits.idle_s

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
        # The method of a request: this client can read an answer.
        if data[:1].isalpha() and data[:1].isupper():
            self._raw.write(encode_refusal(400, _SPEAKS_TLS))
        self._server.note(
            "no TLS", f"{self._peer()} does not speak TLS at this port; its URL must begin with https://"
        )
        self._linger()

    def _fail(self, error: ssl.SSLError) -> None:
        if self._state == _HANDSHAKE:
            reason = _reason(error)
            self._server.note(reason, f"the TLS handshake with {self._peer()} failed: {reason}")
        self._flush()  # the alert that tells the client why
        # Some 50 kB, which a crowd of bad handshakes must not hold all at once while it lingers.
        self._tls, self._incoming, self._outgoing = None, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._linger()

    def _peer(self) -> str:
        peer = self._raw.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else "a client"

    def _linger(self) -> None:
        """End our side, and read on for a moment: bytes that nobody has read would turn the end into a reset."""
        self._app.eof_received()
        self._state = _ENDED
        self._app.deadline_s = self._server.loop.time() + self._server.limits.linger_s
        if not self._raw.is_closing():
            self._raw.write_eof()
