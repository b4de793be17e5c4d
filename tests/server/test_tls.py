"""TLS as clients and operators meet it: handshakes that never end, wrong protocols, wrong files, certificates that change."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.server.test_serve import refused
from tests.server.test_serve import serve as serve  # a fixture
from tests.tls_kit import Authority, Pair
from tests.waiting import until_async
from veil.server.http import HttpServer
from veil.server.http_limits import HttpLimits
from veil.server.settings import ServerSettingsError, Settings, load_settings
from veil.server.tls import Tls
from veil.testing import VeilServer
from veil.wire.exchange import Request, Response

GET = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue()


Start = Callable[..., Awaitable[HttpServer]]


@pytest.fixture
async def start(pair: Pair) -> AsyncIterator[Start]:
    servers: list[HttpServer] = []

    async def ok(request: Request) -> Response:
        return Response(body=request.body or b"ok")

    async def start_one(*, client_ca: Path | None = None, tls: bool = True, **limits: float) -> HttpServer:
        own = Tls(Settings(tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=client_ca))
        server = HttpServer(ok, HttpLimits(**limits))
        await server.start("127.0.0.1", 0, tls=own.current if tls else None)
        servers.append(server)
        return server

    yield start_one
    for server in servers:
        await server.close(grace_s=0)
        assert server.connection_count == 0


def talk(server: HttpServer, context: ssl.SSLContext, raw: bytes = GET) -> tuple[bytes, ssl.SSLSocket]:
    """What a client hears that sends this and listens to the end."""
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    with closing(plain), context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
        client.sendall(raw)
        heard = b""
        while piece := client.recv(2**16):
            heard += piece
        return heard, client


def hello() -> bytes:
    """The first flight of a client."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="a")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


# ---- handshakes


@pytest.mark.parametrize("said", ["nothing", "half a hello", "hello and no more"])
async def test_a_handshake_that_never_ends_counts_as_a_connection_and_is_cut(start: Start, said: str):
    server = await start(header_deadline_s=10, idle_s=1000)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write({"nothing": b"", "half a hello": hello()[:50], "hello and no more": hello()}[said])
    await until_async(lambda: server.connection_count == 1)
    if said == "hello and no more":
        await reader.readexactly(5)  # the server's own flight has begun
    now_s = asyncio.get_running_loop().time()
    server.sweep(now_s + 5)
    assert server.connection_count == 1
    server.sweep(now_s + 10)
    await until_async(lambda: server.connection_count == 0)
    writer.close()


async def test_a_handshake_that_never_ends_gives_its_place_to_a_newcomer(start: Start, authority: Authority):
    server = await start(connections_max=2, idle_spared_s=0)
    stalled = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
    for _, writer in stalled:
        writer.write(hello()[:50])
    await until_async(lambda: server.connection_count == 2)
    heard, _ = await asyncio.to_thread(talk, server, ssl.create_default_context(cafile=authority.ca))
    assert heard.endswith(b"ok")
    for _, writer in stalled:
        writer.close()


async def test_other_clients_are_served_while_handshakes_stall(start: Start, authority: Authority):
    server = await start()
    stalled = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(50)]
    for _, writer in stalled:
        writer.write(hello())
    context = ssl.create_default_context(cafile=authority.ca)
    assert (await asyncio.to_thread(talk, server, context))[0].endswith(b"ok")
    for _, writer in stalled:
        writer.close()


async def test_only_http_1_1_is_agreed_on_and_tls_1_2_at_the_least(start: Start, authority: Authority):
    server = await start()
    context = ssl.create_default_context(cafile=authority.ca)
    context.set_alpn_protocols(["h2", "http/1.1"])
    agreed = set()
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.maximum_version = version
        context.minimum_version = version
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        with await asyncio.to_thread(context.wrap_socket, plain, server_hostname="127.0.0.1") as client:
            agreed.add((client.version(), client.selected_alpn_protocol()))
    assert agreed == {("TLSv1.2", "http/1.1"), ("TLSv1.3", "http/1.1")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_tls_1_1_is_refused_and_the_client_is_told(
    start: Start, authority: Authority, caplog: pytest.LogCaptureFixture
):
    server = await start()
    old = ssl.create_default_context(cafile=authority.ca)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    for _ in range(3):
        with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
            await asyncio.to_thread(talk, server, old)
    said = [record.getMessage() for record in caplog.records]
    # Whatever clients bring about is not logged each time.
    assert said == ["the TLS handshake with 127.0.0.1 failed: unsupported protocol"]
    await until_async(lambda: server.connection_count == 0)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
async def test_a_client_may_not_negotiate_anew(start: Start, authority: Authority):
    server = await start()
    command = [
        "openssl",
        "s_client",
        "-tls1_2",
        "-connect",
        f"127.0.0.1:{server.port}",
        "-CAfile",
        authority.ca,
    ]
    client = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert client.stdin is not None
    client.stdin.write(b"R\n")
    await client.stdin.drain()
    async with asyncio.timeout(60):
        said, _ = await client.communicate()
    assert b"RENEGOTIATING" in said and b"no renegotiation" in said
    await until_async(lambda: server.connection_count == 0)


# ---- the wrong protocol


async def test_plain_http_at_the_tls_port_is_told_to_use_https(
    start: Start, caplog: pytest.LogCaptureFixture
):
    server = await start()

    def ask() -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            connection.request("POST", "/", body=b"x" * 1_000_000)  # still sending when it is refused
            answer = connection.getresponse()
            return answer.status, answer.read()

    for _ in range(3):
        assert await asyncio.to_thread(ask) == (400, b"this port speaks TLS: use https://\n")
    said = [record.getMessage() for record in caplog.records]
    assert said == ["127.0.0.1 does not speak TLS at this port; its URL must begin with https://"]
    await until_async(lambda: server.connection_count == 0)


async def test_what_is_neither_http_nor_tls_is_let_go(start: Start):
    server = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"\x00\x01\x02\x03" * 100)
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    await until_async(lambda: server.connection_count == 0)


async def test_a_failed_handshake_keeps_no_tls_memory_while_it_lingers(start: Start):
    server = await start(linger_s=1000)
    clients = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
    for reader, writer in clients:
        writer.write(b"\x16\x03\x01\x00\x40" + b"x" * 64)
        async with asyncio.timeout(60):
            await reader.read()  # the alert, and that nothing more will come
    assert server.connection_count == 5
    gc.collect()  # what other tests have left
    assert not [each for each in gc.get_objects() if type(each) is ssl.SSLObject]
    for _, writer in clients:
        writer.close()


async def test_tls_at_the_plain_port_is_logged_with_what_to_do(
    start: Start, caplog: pytest.LogCaptureFixture
):
    server = await start(tls=False)
    for _ in range(3):
        with pytest.raises(ssl.SSLError, match=r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE"):
            await asyncio.to_thread(talk, server, ssl.create_default_context())
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["127.0.0.1 speaks TLS at a port that does not; use http://"]


# ---- client certificates


async def test_with_a_client_authority_every_client_must_show_a_certificate(
    start: Start, authority: Authority, tmp_path: Path
):
    (tmp_path / "clients").mkdir()
    clients = Authority(tmp_path / "clients", "clients")
    server = await start(client_ca=clients.ca)
    known = ssl.create_default_context(cafile=authority.ca)
    known.load_cert_chain(*clients.issue("worker", name="worker", client=True))
    assert (await asyncio.to_thread(talk, server, known))[0].endswith(b"ok")

    nobody = ssl.create_default_context(cafile=authority.ca)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        await asyncio.to_thread(talk, server, nobody)
    stranger = ssl.create_default_context(cafile=authority.ca)
    stranger.load_cert_chain(*authority.issue("worker", name="stranger", client=True))
    with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
        await asyncio.to_thread(talk, server, stranger)
    await until_async(lambda: server.connection_count == 0)


# ---- files that will not do


def break_files(pair: Pair, authority: Authority, way: str) -> None:
    key = pair.key.read_text()
    if way == "mismatch":
        authority.issue(name="other").key.rename(pair.key)
    elif way == "mode":
        pair.key.chmod(0o640)
    elif way == "passphrase":
        authority.issue(name=pair.cert.stem, passphrase="hunter2")
    elif way == "no key":
        pair.key.unlink()
    elif way == "no certificate":
        pair.cert.unlink()
    elif way == "empty certificate":
        pair.cert.write_text("")
    elif way == "half a certificate":
        pair.cert.write_text(pair.cert.read_text()[:300])
    elif way == "damaged certificate":
        pair.cert.write_text(pair.cert.read_text().replace("MII", "MIX", 1))
    elif way == "half a key":
        pair.key.write_text(key[:60])
    elif way == "not a key":
        pair.key.write_text("secret\n")
    elif way == "directory":
        pair.cert.unlink()
        pair.cert.mkdir()


WAYS = {
    "mismatch": "tls_key={key}: expected the private key of the certificate in {cert}",
    "mode": "tls_key={key}: expected a file that only its owner can read (chmod 600), its mode is 0640",
    "passphrase": "tls_key={key}: expected a private key without a passphrase",
    "no key": "tls_key={key}: expected a file that can be read (No such file or directory)",
    "no certificate": "tls_cert={cert}: expected a file that can be read (No such file or directory)",
    "empty certificate": "tls_cert={cert}: expected a certificate in PEM, the server's own first",
    "half a certificate": "tls_cert={cert}: expected certificates in PEM (",
    "damaged certificate": "tls_cert={cert}: expected certificates in PEM (",
    "half a key": "tls_key={key}: expected a private key in PEM",
    "not a key": "tls_key={key}: expected a private key in PEM",
    "directory": "tls_cert={cert}: expected a file that can be read (Is a directory)",
}


@pytest.mark.parametrize("way", WAYS)
def test_files_that_will_not_do_are_told_by_setting_value_and_what_was_expected(
    authority: Authority, pair: Pair, way: str
):
    break_files(pair, authority, way)
    with pytest.raises(ServerSettingsError) as told:
        Tls(Settings(tls_cert=pair.cert, tls_key=pair.key))
    assert str(told.value).startswith(WAYS[way].format(cert=pair.cert, key=pair.key))
    assert "\n" not in str(told.value) and len(str(told.value)) < 500


def test_a_client_authority_that_is_none_is_told(pair: Pair):
    with pytest.raises(
        ServerSettingsError, match=r"tls_client_ca=.*: expected certificates of authorities in PEM"
    ):
        Tls(Settings(tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=pair.key))


def test_what_tools_write_beside_the_pem_blocks_is_passed_over_in_any_language(
    pair: Pair, authority: Authority
):
    for path in (*pair, authority.ca):
        path.write_bytes("Bag Attributes\n    friendlyName: Prüfung\n".encode() + path.read_bytes())
    tls = Tls(Settings(tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=authority.ca))
    assert tls.certificate.problem is None


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"tls_cert": "a.pem"}, "tls_key: expected a file, because tls_cert=a.pem is set"),
        ({"tls_key": "a.key"}, "tls_cert: expected a file, because tls_key=a.key is set"),
        ({"tls_client_ca": "ca.pem"}, "tls_cert: expected a file, because tls_client_ca=ca.pem is set"),
    ],
)
def test_the_settings_go_together(flags: dict[str, str], told: str):
    with pytest.raises(ServerSettingsError) as refusal:
        load_settings(flags, {}, os.devnull)
    assert str(refusal.value) == told


def test_a_server_with_wrong_files_does_not_start(tmp_path: Path, pair: Pair, authority: Authority):
    break_files(pair, authority, "mode")
    code, line = refused("--store", "memory", *pair.flags, cwd=tmp_path)
    assert code == 2
    assert f"tls_key={pair.key}: expected a file that only its owner can read" in line


# ---- a real server


@pytest.fixture
def secured(authority: Authority, pair: Pair) -> Iterator[VeilServer]:
    with VeilServer(
        "--store",
        "memory",
        "--smq-port",
        "0",
        *pair.flags,
        "--log-level",
        "info",
        environ={"HOME": "/nowhere"},
    ) as server:
        yield server


def certificate_of(port: int) -> str:
    """The certificate that a new connection is shown, in PEM."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=60)


def test_everything_that_names_the_server_says_https(secured: VeilServer, authority: Authority):
    assert secured.endpoint_url == f"https://127.0.0.1:{secured.port}"
    assert secured.smq_endpoint_url is not None and secured.smq_endpoint_url.startswith("https://127.0.0.1:")
    said = secured.log_text()
    assert f"is ready at {secured.endpoint_url}" in said
    assert "TLS      certificate of localhost, 127.0.0.1, 0:0:0:0:0:0:0:1, valid until 2" in said
    client = secured.client(verify=str(authority.ca))
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    assert url == f"{secured.endpoint_url}/000000000000/orders"
    client.send_message(QueueUrl=url, MessageBody="x" * 1_000_000)
    (message,) = client.receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == "x" * 1_000_000
    client.close()
    context = ssl.create_default_context(cafile=authority.ca)
    port = int(secured.smq_endpoint_url.rpartition(":")[2])
    with closing(http.client.HTTPSConnection("localhost", port, timeout=60, context=context)) as smq:
        smq.request("PUT", "/queues/steps", b"<Queue/>", {"Content-Type": "text/xml"})
        made = smq.getresponse()
        made.read()
        assert (made.status, made.headers["Location"]) == (201, f"https://localhost:{port}/queues/steps")
        smq.request("GET", "/queues/none")
        assert f"<HostId>https://localhost:{port}</HostId>" in smq.getresponse().read().decode()


def test_the_consoles_cookie_is_secure_and_its_commands_say_https(authority: Authority, pair: Pair):
    context = ssl.create_default_context(cafile=authority.ca)
    with (
        VeilServer("--store", "memory", *pair.flags, environ={"VEIL_KEYS": "ROOT:secret"}) as server,
        closing(
            http.client.HTTPSConnection("127.0.0.1", server.port, timeout=120, context=context)
        ) as browser,
    ):
        browser.request("GET", "/console/login", headers={"Host": "veil.example"})
        answer = browser.getresponse()
        answer.read()
        assert answer.status == 200 and answer.headers["Set-Cookie"].endswith("; Secure")


@pytest.mark.parametrize("goodbye", [True, False], ids=["close_notify", "cut"])
def test_no_message_is_claimed_for_a_client_that_has_gone(
    secured: VeilServer, authority: Authority, goodbye: bool
):
    client = secured.client(verify=str(authority.ca))
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    context = ssl.create_default_context(cafile=authority.ca)
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    head = (
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
        f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    plain = socket.create_connection(("127.0.0.1", secured.port), timeout=60)
    gone = context.wrap_socket(plain, server_hostname="127.0.0.1")
    gone.sendall(head.encode() + body)
    waiting = lambda: polls_waiting(secured, authority)  # noqa: E731
    while waiting() != 1:
        pass
    if goodbye:
        gone.settimeout(60)
        with closing(gone.unwrap()):  # both sides have said that nothing more will come
            pass
    gone.close()
    while waiting() != 0:
        pass
    client.send_message(QueueUrl=url, MessageBody="for whoever is there")
    got = client.receive_message(QueueUrl=url, AttributeNames=["ApproximateReceiveCount"])
    assert got["Messages"][0]["Attributes"]["ApproximateReceiveCount"] == "1"
    client.close()


def polls_waiting(server: VeilServer, authority: Authority) -> int:
    context = ssl.create_default_context(cafile=authority.ca)
    with closing(http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60, context=context)) as asked:
        asked.request("GET", "/metrics")
        lines = asked.getresponse().read().decode().splitlines()
    return int(float(next(line.split()[-1] for line in lines if line.startswith("veil_long_polls_waiting"))))


# ---- certificates that change


def said_until(server: Any, word: str) -> str:
    """What the server says up to the line that has this word."""
    said = ""
    for line in server.stderr:
        said += line
        if word in line:
            return said
    raise AssertionError(said)


def test_sighup_takes_up_a_new_certificate_and_open_connections_go_on(
    serve: Any, authority: Authority, pair: Pair
):
    server = serve("--store", "memory", *pair.flags)
    assert certificate_of(server.port) == pair.cert.read_text()
    context = ssl.create_default_context(cafile=authority.ca)
    with closing(
        http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60, context=context)
    ) as open_one:
        open_one.request("GET", "/healthz")
        open_one.getresponse().read()
        fresh = authority.issue(name="next")
        fresh.key.replace(pair.key)
        fresh.cert.replace(pair.cert)
        server.process.send_signal(signal.SIGHUP)
        assert "SIGHUP: certificate of localhost" in said_until(server, "in effect")
        assert certificate_of(server.port) == pair.cert.read_text()
        open_one.request("GET", "/healthz")
        assert open_one.getresponse().status == 200
    assert server.stop() == 0


def test_a_bad_pair_leaves_the_old_one_in_effect_and_is_told_once(
    serve: Any, authority: Authority, pair: Pair
):
    server = serve("--store", "memory", *pair.flags)
    old = pair.cert.read_text()
    fresh = authority.issue(name="next")
    fresh.cert.replace(pair.cert)  # and its key is still to come
    server.process.send_signal(signal.SIGHUP)
    told = said_until(server, "stays as it was")
    assert f"tls_key={pair.key}: expected the private key of the certificate in {pair.cert}" in told
    assert told.count("\n") == 1
    assert certificate_of(server.port) == old
    fresh.key.replace(pair.key)
    told = said_until(server, "in effect")  # by itself: the files have changed
    assert told.count("\n") == 1 and "the TLS files have changed: certificate of" in told
    assert certificate_of(server.port) == pair.cert.read_text()
    assert server.stop() == 0


def test_files_that_are_replaced_through_a_link_are_taken_up(
    serve: Any, authority: Authority, pair: Pair, tmp_path: Path
):
    for version, files in (("1", pair), ("2", authority.issue(name="two"))):
        (tmp_path / version).mkdir()
        files.cert.rename(tmp_path / version / "tls.crt")
        files.key.rename(tmp_path / version / "tls.key")
    link = tmp_path / "data"
    link.symlink_to("1")
    server = serve(
        "--store", "memory", "--tls-cert", str(link / "tls.crt"), "--tls-key", str(link / "tls.key")
    )
    (tmp_path / "draft").symlink_to("2")
    (tmp_path / "draft").replace(link)  # as mounted secrets are
    said_until(server, "in effect")
    assert certificate_of(server.port) == (tmp_path / "2" / "tls.crt").read_text()
    assert server.stop() == 0


def test_an_expired_certificate_is_served_and_warned_about(serve: Any, authority: Authority):
    pair = authority.issue(days=-1)
    server = serve("--store", "memory", *pair.flags)
    said = server.said + said_until(server, "clients will refuse it")
    assert f"tls_cert={pair.cert}: clients will refuse it (certificate has expired)" in said
    assert server.stop() == 0


def test_a_server_with_tls_on_all_addresses_is_not_warned_about(serve: Any, pair: Pair):
    server = serve(
        "--store", "memory", "--host", "0.0.0.0", *pair.flags, environ={"VEIL_KEYS": "ROOT:secret"}
    )
    assert server.stop() == 0
    assert "plain HTTP" not in server.said


# ---- doctor


@pytest.mark.parametrize(
    ("days", "verdict", "told"),
    [
        (300, "ok", "certificate of localhost"),
        (5, "warn", "days left"),
        (-1, "fail", "certificate has expired"),
    ],
)
def test_doctor_looks_at_the_certificate(
    tmp_path: Path, authority: Authority, days: int, verdict: str, told: str
):
    pair = authority.issue(days=days)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("VEIL_", "AWS_"))}
    environ |= {"VEIL_TLS_CERT": str(pair.cert), "VEIL_TLS_KEY": str(pair.key), "VEIL_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "veil.cli.main", "doctor", "--json"],
        capture_output=True, text=True, env=environ, cwd=tmp_path,
    )  # fmt: skip
    (found,) = [one for one in map(json.loads, done.stdout.splitlines()) if one["check"] == "TLS"]
    assert found["verdict"] == verdict and told in found["text"]
