"""The server's certificate: read from its files, checked, and read again when they change.

A pair is taken whole or not at all. Whatever is wrong with the files of a running server, the pair that it has stays in
effect, and one line says why.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import stat
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from veil.server.settings import Settings, SettingsError

_log = logging.getLogger(__name__)

_FILE_BYTES_MAX: Final = 1 << 20
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
        """Reads the files; raises SettingsError with the setting, its value and what was expected."""
        assert settings.tls_cert is not None
        assert settings.tls_key is not None
        self._cert, self._key, self._client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
        self._seen = self._looks()
        self.context, self.certificate = self._load()

    def current(self) -> ssl.SSLContext:
        """The context for a new connection."""
        return self.context

    def reload(self, why: str) -> None:
        """Read the files again, and say in the log what came of it."""
        self._seen = self._looks()
        try:
            self.context, self.certificate = self._load()
        except SettingsError as problem:
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

    def _unusable_pair(self, chain: str, problem: Exception) -> SettingsError:
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
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if private and (not stat.S_ISREG(mode) or mode & 0o077):
                raise _refused(
                    setting,
                    path,
                    f"a file that only its owner can read (chmod 600), its mode is {stat.S_IMODE(mode):04o}",
                )
            return file.read(_FILE_BYTES_MAX).decode("ascii", "replace")
    except OSError as problem:
        raise _refused(setting, path, f"a file that can be read ({problem.strerror})") from None


def _refused(setting: str, path: Path, expected: str) -> SettingsError:
    return SettingsError(f"{setting}={path}: expected {expected}")


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
