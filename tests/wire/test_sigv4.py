"""Signatures, with botocore as the oracle: what it signs passes, and nothing else does."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import socket
import string
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from unittest import mock
from urllib.parse import parse_qs, quote, unquote, urlsplit

import boto3
import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.signing import sign
from tests.wire.listening import listening
from veil.signing.sigv4 import signature, signing_key, sigv4_timestamp, string_to_sign
from veil.wire.exchange import Request
from veil.wire.front_end import unverified_scope
from veil.wire.request_errors import (
    KeyUnknown,
    SignatureMalformed,
    SignatureMismatch,
    SignatureRefused,
)
from veil.wire.sigv4 import AccessKey, Verifier

NOW = datetime(2025, 6, 15, 12, 30, 45, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
MINUTE_MS = 60_000
KEY = AccessKey("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "000000000000")
VERIFIER = Verifier({KEY.key_id: KEY})
KEY_AND_REGION = (KEY, "eu-north-1")
JSON_HEADERS = {
    "Content-Type": "application/x-amz-json-1.0",
    "X-Amz-Target": "AmazonSQS.SendMessage",
    "x-amzn-query-mode": "true",
    "User-Agent": "Boto3/1.44",
    "amz-sdk-invocation-id": "0f6a5f4e-8f3c-4d5e-a0f2-0f6a5f4e8f3c",
}


@pytest.fixture(autouse=True)
def botocore_lives_now() -> Iterator[None]:
    # botocore reads its clock through this one name; the signatures themselves are the real thing.
    with mock.patch.object(botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: NOW):
        yield


def as_received(signed: AWSRequest, host: str) -> Request:
    """What a server sees of a request that botocore prepared."""
    parts = urlsplit(signed.url)
    headers = {name.lower(): value for name, value in signed.headers.items()}
    headers.setdefault("host", host)
    return Request(signed.method, parts.path or "/", parts.query, headers, signed.body or b"")


def signed_by_botocore(
    *,
    method: str = "POST",
    host: str = "localhost:9324",
    path: str = "/",
    query: str = "",
    headers: dict[str, str] | None = None,
    body: bytes = b'{"QueueUrl":"q","MessageBody":"hello"}',
    key: AccessKey = KEY,
    token: str | None = None,
    region: str = "eu-north-1",
    service: str = "sqs",
) -> Request:
    url = f"http://{host}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(
        method=method, url=url, headers=JSON_HEADERS if headers is None else headers, data=body
    )
    credentials = Credentials(key.key_id, key.secret, token)
    botocore.auth.SigV4Auth(credentials, service, region).add_auth(request)
    return as_received(request, host)


def presigned_by_botocore(
    *,
    parameters: dict[str, str],
    path: str = "/000000000000/q",
    expires_s: int = 60,
    token: str | None = None,
) -> Request:
    request = AWSRequest(method="GET", url=f"http://localhost:9324{path}", params=parameters)
    credentials = Credentials(KEY.key_id, KEY.secret, token)
    botocore.auth.SigV4QueryAuth(credentials, "sqs", "eu-north-1", expires=expires_s).add_auth(request)
    return as_received(request, "localhost:9324")


def with_header(request: Request, name: str, value: str) -> Request:
    return replace(request, headers={**request.headers, name: value})


def without_header(request: Request, name: str) -> Request:
    return replace(request, headers={k: v for k, v in request.headers.items() if k != name})


def with_authorization(request: Request, old: str, new: str) -> Request:
    changed = request.headers["authorization"].replace(old, new)
    assert changed != request.headers["authorization"]
    return with_header(request, "authorization", changed)


# ---- what botocore signs, passes

token_chars = st.sampled_from(string.ascii_letters + string.digits + "-")
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
segments = st.one_of(
    words.map(lambda word: quote(word, safe="~")), st.sampled_from([".", "..", "", "~", "%7E", "a%2Fb"])
)
paths = st.lists(segments, max_size=5).map(lambda some: "/" + "/".join(some))
queries = st.lists(st.tuples(words, words), max_size=5).map(
    lambda some: "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in some)
)
header_values = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
extra_headers = st.dictionaries(
    st.text(token_chars, min_size=1, max_size=8).map(lambda name: f"x-amz-{name}".lower()),
    header_values,
    max_size=4,
).map(lambda some: {n: v for n, v in some.items() if n not in ("x-amz-date", "x-amz-content-sha256")})


@settings(max_examples=400)
@given(
    method=st.sampled_from(["GET", "POST"]),
    path=paths,
    query=queries,
    headers=extra_headers,
    body=st.binary(max_size=64),
    token=st.none() | st.text(token_chars, min_size=1, max_size=60),
    region=st.sampled_from(["us-east-1", "eu-north-1", "local"]),
    host=st.sampled_from(["localhost:9324", "sqs.eu-north-1.amazonaws.com", "127.0.0.1:80", "[::1]:9324"]),
)
def test_whatever_botocore_signs_in_the_header_passes(
    method: str,
    path: str,
    query: str,
    headers: dict[str, str],
    body: bytes,
    token: str | None,
    region: str,
    host: str,
) -> None:
    if host.endswith(":80"):  # botocore signs no default port; its HTTP library sends none either
        host = host[:-3]
    request = signed_by_botocore(
        method=method,
        path=path,
        query=query,
        headers=headers,
        body=body,
        token=token,
        region=region,
        host=host,
    )
    assert VERIFIER.verify(request, NOW_MS) == (KEY, region)
    assert unverified_scope(request) == (KEY.key_id, region)


@settings(max_examples=200)
@given(
    path=paths,
    parameters=st.dictionaries(words.filter(lambda word: not word.startswith("X-Amz")), words, max_size=5),
    expires_s=st.integers(1, 604_800),
    token=st.none() | st.text(token_chars | st.sampled_from("+/="), min_size=1, max_size=60),
)
def test_whatever_botocore_presigns_passes(
    path: str, parameters: dict[str, str], expires_s: int, token: str | None
) -> None:
    request = presigned_by_botocore(path=path, parameters=parameters, expires_s=expires_s, token=token)
    assert VERIFIER.verify(request, NOW_MS) == KEY_AND_REGION
    assert unverified_scope(request) == (KEY.key_id, "eu-north-1")


def test_a_link_from_a_boto3_client_passes_and_cannot_be_given_a_body() -> None:
    client = boto3.client(
        "sqs",
        region_name="eu-north-1",
        endpoint_url="http://localhost:9324",
        aws_access_key_id=KEY.key_id,
        aws_secret_access_key=KEY.secret,
    )
    url = client.generate_presigned_url(
        "list_queues", {"QueueNamePrefix": "a b+c/ä"}, ExpiresIn=60, HttpMethod="GET"
    )
    parts = urlsplit(url)
    # botocore's JSON protocol signs these too, so whoever follows the link has to send them.
    named = {
        "content-type": "application/x-amz-json-1.0",
        "x-amz-target": "AmazonSQS.ListQueues",
        "x-amzn-query-mode": "true",
    }
    request = Request("GET", parts.path, parts.query, {"host": parts.netloc, **named})
    assert VERIFIER.verify(request, NOW_MS) == KEY_AND_REGION
    assert unverified_scope(request) == (KEY.key_id, "eu-north-1")
    with pytest.raises(SignatureMismatch):
        VERIFIER.verify(replace(request, body=b"Action=PurgeQueue"), NOW_MS)
    with pytest.raises(SignatureMismatch):
        VERIFIER.verify(replace(request, method="POST"), NOW_MS)
    with pytest.raises(
        SignatureMismatch, match="'x-amz-target' is a 'SignedHeader' but is not in the request"
    ):
        VERIFIER.verify(without_header(request, "x-amz-target"), NOW_MS)
    with pytest.raises(SignatureMismatch):
        VERIFIER.verify(with_header(request, "x-amz-target", "AmazonSQS.PurgeQueue"), NOW_MS)


def test_a_real_boto3_send_passes_as_it_leaves_the_client() -> None:
    client = boto3.client(
        "sqs",
        region_name="eu-north-1",
        endpoint_url="http://localhost:9324",
        aws_access_key_id=KEY.key_id,
        aws_secret_access_key=KEY.secret,
        aws_session_token="session/token==",
    )
    caught: list[Request] = []

    class CaughtError(Exception):
        pass

    def catch(request: object, **_: object) -> None:
        parts = urlsplit(request.url)  # type: ignore[attr-defined]
        headers = {
            name.lower(): value.decode() if isinstance(value, bytes) else value
            for name, value in request.headers.items()  # type: ignore[attr-defined]
        }
        body = request.body  # type: ignore[attr-defined]
        caught.append(Request("POST", parts.path, parts.query, {"host": parts.netloc, **headers}, body))
        raise CaughtError

    client.meta.events.register("before-send.sqs", catch)
    with pytest.raises(CaughtError):
        client.send_message(QueueUrl="http://localhost:9324/000000000000/q", MessageBody="hellö")
    assert VERIFIER.verify(caught[0], NOW_MS) == KEY_AND_REGION


def test_a_date_header_serves_when_there_is_no_x_amz_date() -> None:
    request = signed_by_botocore(headers={"Date": "anything, botocore writes it anew"})
    assert "x-amz-date" not in request.headers
    assert VERIFIER.verify(request, NOW_MS) == KEY_AND_REGION


def test_the_region_is_the_signers_choice() -> None:
    for region in ("us-east-1", "elasticmq", "x"):
        assert VERIFIER.verify(signed_by_botocore(region=region), NOW_MS)[1] == region


def test_what_proxies_and_http_libraries_may_change_is_not_signed() -> None:
    request = signed_by_botocore()
    for name in (
        "user-agent",
        "x-amzn-trace-id",
        "x-forwarded-for",
        "connection",
        "content-length",
        "accept",
    ):
        assert VERIFIER.verify(with_header(request, name, "changed"), NOW_MS) == KEY_AND_REGION


def test_folded_white_space_in_a_signed_header_does_not_matter() -> None:
    request = signed_by_botocore(headers={"x-amz-meta": "  a   b "})
    for folded in ("a b", "a  b", "a\tb"):
        assert VERIFIER.verify(with_header(request, "x-amz-meta", folded), NOW_MS) == KEY_AND_REGION
    with pytest.raises(SignatureMismatch):
        VERIFIER.verify(with_header(request, "x-amz-meta", "ab"), NOW_MS)


def test_equal_spellings_of_a_query_are_equal() -> None:
    request = signed_by_botocore(method="GET", query="a=x%20y&b=&c=~&d=%C3%A4&d=1", body=b"")
    for same in ("b&a=x+y&c=%7E&d=1&d=%c3%a4", "d=%C3%A4&d=1&c=%7e&b=&%61=x%20y"):
        assert VERIFIER.verify(replace(request, query=same), NOW_MS) == KEY_AND_REGION
    for other in (
        "a=x%2By&b=&c=~&d=%C3%A4&d=1",
        "a=x%20y&b=&c=~&d=%C3%A4",
        "a=x%20y&b=&c=~&d=%C3%A4&d=1&d=1",
    ):
        with pytest.raises(SignatureMismatch):
            VERIFIER.verify(replace(request, query=other), NOW_MS)


# ---- what was changed, does not


def mutated(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    letter = rng.choice(string.ascii_letters + string.digits + "%/=&;,- ")
    return rng.choice(
        [text[:at] + letter + text[at:], text[:at] + letter + text[at + 1 :], text[:at] + text[at + 1 :]]
    )


def meaning(request: Request) -> object:
    """All that a signature must protect; two requests that differ here may not share one."""
    path = request.path
    authorization = request.headers.get("authorization", "")
    query = sorted((unquote(n), v) for n, vs in parse_qs(request.query, True).items() for v in sorted(vs))
    signed = {n: " ".join(v.split()) for n, v in request.headers.items() if n != "authorization"}
    pieces = sorted(piece.strip() for piece in authorization.split(","))
    return request.method, path, query, signed, pieces, request.body


def test_no_change_to_a_signed_request_gets_through() -> None:
    rng = random.Random(20250615)
    header_signed = signed_by_botocore(
        path="/000000000000/orders", query="Action=SendMessage&x=1", token="tok"
    )
    # Everything else in the request is covered, so what is not is left out here.
    bare = {n: v for n, v in header_signed.headers.items() if n != "user-agent"}
    presigned = presigned_by_botocore(parameters={"Action": "ReceiveMessage", "Name": "a b"}, token="tok")
    tried = 0
    for original in (replace(header_signed, headers=bare), presigned):
        assert VERIFIER.verify(original, NOW_MS) == KEY_AND_REGION
        for _ in range(4000):
            part = rng.choice(["body", "path", "query", "header"])
            if part == "body":
                text = mutated(original.body.decode(), rng)
                changed = replace(original, body=text.encode())
            elif part == "header":
                name = rng.choice(list(original.headers))
                changed = with_header(original, name, mutated(original.headers[name], rng))
            elif part == "path":
                changed = replace(original, path=mutated(original.path, rng))
                if changed.path.replace("//", "/").rstrip() == original.path:
                    continue  # AWS takes doubled slashes for one
            else:
                changed = replace(original, query=mutated(original.query, rng))
                if sorted(changed.query.strip("&").split("&")) == sorted(original.query.split("&")):
                    continue
            if meaning(changed) == meaning(original):
                continue
            tried += 1
            with pytest.raises(SignatureRefused):
                VERIFIER.verify(changed, NOW_MS)
                pytest.fail(f"accepted {changed}")
    assert tried > 6000


def test_every_single_bit_of_the_body_counts() -> None:
    request = signed_by_botocore()
    for at in range(len(request.body) * 8):
        body = bytearray(request.body)
        body[at // 8] ^= 1 << (at % 8)
        with pytest.raises(SignatureMismatch):
            VERIFIER.verify(replace(request, body=bytes(body)), NOW_MS)


def test_a_wrong_secret_and_an_unknown_key_are_told_apart_as_aws_does() -> None:
    with pytest.raises(SignatureMismatch, match="The request signature we calculated does not match"):
        VERIFIER.verify(signed_by_botocore(key=dataclasses.replace(KEY, secret="wrong")), NOW_MS)
    with pytest.raises(KeyUnknown, match="The security token included in the request is invalid"):
        VERIFIER.verify(signed_by_botocore(key=dataclasses.replace(KEY, key_id="AKIDOTHER")), NOW_MS)


def test_a_rotated_secret_ends_the_old_one_at_once() -> None:
    keys = {KEY.key_id: KEY}
    verifier = Verifier(keys)
    request = signed_by_botocore()
    assert verifier.verify(request, NOW_MS) == KEY_AND_REGION
    keys[KEY.key_id] = dataclasses.replace(KEY, secret="new")
    with pytest.raises(SignatureMismatch):
        verifier.verify(request, NOW_MS)
    key, _ = verifier.verify(signed_by_botocore(key=dataclasses.replace(KEY, secret="new")), NOW_MS)
    assert key.secret == "new"


def test_no_signature_at_all_is_an_anonymous_request() -> None:
    for query in ("", "Action=ListQueues", "X-Amz-Foo=1"):
        assert VERIFIER.verify(Request("GET", "/", query, {"host": "localhost"}), NOW_MS) is None


@pytest.mark.parametrize(
    ("old", "new", "error", "told"),
    [
        ("/sqs/", "/s3/", SignatureMismatch, "(?i)credential.* scope"),
        ("/aws4_request", "/aws5_request", SignatureMismatch, "(?i)credential.* scope"),
        ("/20250615/", "/20250614/", SignatureMismatch, "(?i)credential.* scope"),
        ("/eu-north-1/", "/eu north 1/", SignatureMismatch, "(?i)credential.* scope"),
        ("/eu-north-1/", "//", SignatureMismatch, "(?i)credential.* scope"),
        ("/eu-north-1/", "/", SignatureMalformed, "."),
        ("AKIDEXAMPLE/", "/", SignatureMalformed, "."),
        ("AKIDEXAMPLE/", "a/AKIDEXAMPLE/", SignatureMalformed, "."),
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1", SignatureMalformed, "."),
        ("AWS4-HMAC-SHA256", "Bearer", SignatureMalformed, "."),
        ("Signature=", "Sig=", SignatureMalformed, "."),
        ("SignedHeaders=", "Headers=", SignatureMalformed, "."),
        ("Credential=", "", SignatureMalformed, "."),
        ("Signature=", "Signature=0, Signature=", SignatureMalformed, "."),
        ("host;", "", SignatureMismatch, "must be a 'SignedHeader'"),
        ("x-amz-date;", "", SignatureMismatch, "must be a 'SignedHeader'"),
        (";x-amz-target", "", SignatureMismatch, "must be a 'SignedHeader'"),
        ("host;", "host;x-not-sent;", SignatureMismatch, "."),
        ("host;", "host;host;", SignatureMalformed, "."),
        ("Signature=", "Signature=ä", SignatureMismatch, "."),
    ],
)
def test_a_signature_with_a_wrong_part_is_refused_by_name(
    old: str, new: str, error: type[SignatureRefused], told: str
) -> None:
    with pytest.raises(error, match=told) as caught:
        VERIFIER.verify(with_authorization(signed_by_botocore(), old, new), NOW_MS)
    assert type(caught.value) is error


def test_a_genuine_signature_for_another_service_is_refused() -> None:
    with pytest.raises(SignatureMismatch, match="Credential should be scoped to correct service: 'sqs'"):
        VERIFIER.verify(signed_by_botocore(service="sns"), NOW_MS)


@pytest.mark.parametrize("unsigned", ["host", "x-amz-date", "x-amz-target"])
def test_a_genuine_signature_that_leaves_out_what_matters_is_refused(unsigned: str) -> None:
    headers = {"host": "localhost", "x-amz-date": "20250615T123045Z", "x-amz-target": "AmazonSQS.SendMessage"}
    signed = ";".join(name for name in headers if name != unsigned)
    scope = "20250615/eu-north-1/sqs/aws4_request"
    body_hash = hashlib.sha256(b"").hexdigest()
    text = string_to_sign("POST", "/", "", headers, signed, body_hash, headers["x-amz-date"], scope)
    proof = signature(signing_key(KEY.secret, "20250615", "eu-north-1", "sqs"), text)
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={KEY.key_id}/{scope},SignedHeaders={signed},Signature={proof}"
    )
    with pytest.raises(SignatureMismatch, match=f"(?i){unsigned}.* must be a 'SignedHeader'"):
        VERIFIER.verify(Request("POST", "/", "", headers), NOW_MS)


def test_a_genuine_signature_over_a_header_named_twice_is_refused() -> None:
    headers = {"host": "localhost", "x-amz-date": "20250615T123045Z"}
    signed, scope = "host;host;x-amz-date", "20250615/eu-north-1/sqs/aws4_request"
    body_hash = hashlib.sha256(b"").hexdigest()
    text = string_to_sign("POST", "/", "", headers, signed, body_hash, headers["x-amz-date"], scope)
    proof = signature(signing_key(KEY.secret, "20250615", "eu-north-1", "sqs"), text)
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={KEY.key_id}/{scope},SignedHeaders={signed},Signature={proof}"
    )
    with pytest.raises(SignatureMalformed, match="SignedHeaders has a name twice"):
        VERIFIER.verify(Request("POST", "/", "", headers), NOW_MS)


@pytest.mark.parametrize(("key_id", "status"), [("AKIDNOBODY", 403), (KEY.key_id, 400)])
def test_a_small_request_with_repeated_signed_headers_costs_next_to_nothing(key_id: str, status: int) -> None:
    timestamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    head = (
        "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ListQueues\r\n"
        f"X-Amz-Date: {timestamp}\r\na: {'x ' * 7_500}\r\nContent-Length: 0\r\nConnection: close\r\n"
        f"Authorization: AWS4-HMAC-SHA256 Credential={key_id}/{timestamp[:8]}/eu-north-1/sqs/aws4_request,"
        f"SignedHeaders=host;x-amz-target;x-amz-date{';a' * 7_500},Signature={'0' * 64}\r\n\r\n"
    )
    with listening(VERIFIER) as port, socket.create_connection(("127.0.0.1", port)) as client:
        began_s = time.process_time()
        client.sendall(head.encode())
        answer = client.makefile("rb").read()
        assert time.process_time() - began_s < 0.5  # one line of 15 KB for each name: seconds, and 100 MB
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


def test_the_request_of_a_stranger_is_not_read_through() -> None:
    with (
        mock.patch("veil.wire.sigv4.string_to_sign", side_effect=AssertionError),
        mock.patch("veil.wire.sigv4.sha256", side_effect=AssertionError),
        pytest.raises(KeyUnknown),
    ):
        VERIFIER.verify(signed_by_botocore(key=dataclasses.replace(KEY, key_id="AKIDOTHER")), NOW_MS)


def test_an_added_amz_header_must_be_signed() -> None:
    request = signed_by_botocore(headers={})
    with pytest.raises(SignatureMismatch, match="x-amz-target"):
        VERIFIER.verify(with_header(request, "x-amz-target", "AmazonSQS.PurgeQueue"), NOW_MS)
    with pytest.raises(SignatureMismatch, match="x-amz-security-token"):
        VERIFIER.verify(with_header(request, "x-amz-security-token", "t"), NOW_MS)


def test_an_unsigned_payload_is_refused_and_a_stated_hash_must_be_the_bodys() -> None:
    for stated in ("UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "0" * 64):
        request = signed_by_botocore(headers={"X-Amz-Content-SHA256": stated})
        with pytest.raises(SignatureMismatch):
            VERIFIER.verify(request, NOW_MS)
        # Nor may a client sign the true hash and state another.
        ours = sign(
            method="POST",
            host="localhost",
            path="/",
            headers={"x-amz-content-sha256": stated},
            body=b"",
            key_id=KEY.key_id,
            secret=KEY.secret,
            region="eu-north-1",
            now_ms=NOW_MS,
        )
        headers = {"host": "localhost", "x-amz-content-sha256": stated}
        headers |= {name.lower(): value for name, value in ours.items()}
        with pytest.raises(SignatureMismatch):
            VERIFIER.verify(Request("POST", "/", "", headers), NOW_MS)
    empty_hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    request = signed_by_botocore(headers={"X-Amz-Content-SHA256": empty_hash}, body=b"")
    assert VERIFIER.verify(request, NOW_MS) == KEY_AND_REGION


# ---- time


def test_clocks_may_differ_by_fifteen_minutes_and_no_more() -> None:
    request = signed_by_botocore()
    for apart_ms in (-15 * MINUTE_MS, 15 * MINUTE_MS):
        assert VERIFIER.verify(request, NOW_MS + apart_ms) == KEY_AND_REGION
    with pytest.raises(SignatureMismatch, match="Signature expired") as late:
        VERIFIER.verify(request, NOW_MS + 16 * MINUTE_MS)
    assert str(late.value) == (
        "Signature expired: 20250615T123045Z is now earlier than 20250615T123145Z"
        " (20250615T124645Z - 15 min.)"
    )
    with pytest.raises(SignatureMismatch, match="Signature not yet current") as early:
        VERIFIER.verify(request, NOW_MS - 16 * MINUTE_MS)
    assert str(early.value) == (
        "Signature not yet current: 20250615T123045Z is still later than 20250615T122945Z"
        " (20250615T121445Z + 15 min.)"
    )


def test_a_link_ends_when_it_says() -> None:
    request = presigned_by_botocore(parameters={"Action": "ReceiveMessage"}, expires_s=60)
    assert VERIFIER.verify(request, NOW_MS + 60_000) == KEY_AND_REGION
    with pytest.raises(SignatureMismatch, match="Signature expired"):
        VERIFIER.verify(request, NOW_MS + 60_001)
    with pytest.raises(SignatureMismatch, match="Signature not yet current"):
        VERIFIER.verify(request, NOW_MS - 16 * MINUTE_MS)
    week = presigned_by_botocore(parameters={}, expires_s=604_800)
    assert VERIFIER.verify(week, NOW_MS + 604_800_000) == KEY_AND_REGION


@pytest.mark.parametrize("expires_s", [0, -1, 604_801, 10**30])
def test_a_link_may_not_live_longer_than_a_week(expires_s: int) -> None:
    with pytest.raises(SignatureMalformed, match="X-Amz-Expires"):
        VERIFIER.verify(presigned_by_botocore(parameters={}, expires_s=expires_s), NOW_MS)


@pytest.mark.parametrize("name", ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"])
def test_a_link_needs_every_part_exactly_once(name: str) -> None:
    request = presigned_by_botocore(parameters={})
    pieces = request.query.split("&")
    part = next(piece for piece in pieces if piece.startswith(f"X-Amz-{name}="))
    with pytest.raises(SignatureMalformed, match=f"X-Amz-{name}"):
        VERIFIER.verify(replace(request, query="&".join(p for p in pieces if p is not part)), NOW_MS)
    with pytest.raises(SignatureMalformed, match=f"X-Amz-{name}"):
        VERIFIER.verify(replace(request, query=f"{request.query}&{part}"), NOW_MS)


@pytest.mark.parametrize(
    "date", ["20250615", "20250615T123045", "20251315T123045Z", "2025061５T123045Z", "x", "Sun"]
)
def test_an_unreadable_date_is_named(date: str) -> None:
    with pytest.raises(SignatureMalformed, match="ISO-8601"):
        VERIFIER.verify(with_header(signed_by_botocore(), "x-amz-date", date), NOW_MS)
    no_date = without_header(signed_by_botocore(), "x-amz-date")
    with pytest.raises(SignatureMalformed, match="ISO-8601"):
        VERIFIER.verify(with_header(no_date, "date", date), NOW_MS)
    with pytest.raises(SignatureMalformed, match="either a 'X-Amz-Date' or a 'Date' header"):
        VERIFIER.verify(no_date, NOW_MS)


# ---- garbage


def test_text_that_no_client_can_have_signed_is_refused_like_any_other() -> None:
    request = signed_by_botocore(path="/q", query="a=b")
    for odd in (
        replace(request, path="/\ud800"),
        replace(request, query="a=\ud800"),
        with_header(request, "x-amz-target", "\ud800"),
        with_authorization(request, "Signature=", "Signature=\ud800"),
        replace(request, query="X-Amz-Signature=\ud800", headers={"host": "localhost"}),
    ):
        with pytest.raises(SignatureMismatch):
            VERIFIER.verify(odd, NOW_MS)


anything = st.text(st.characters(), max_size=60)
fragments = (
    "AWS4-HMAC-SHA256 | |Credential=|AKIDEXAMPLE|/|20250615|eu-north-1|sqs|aws4_request|,|SignedHeaders="
    "|host|;|x-amz-date|Signature=|=|%|&|%2F|9|X-Amz-Credential=|X-Amz-Signature=|X-Amz-Algorithm=|X-Amz-Date="
    "|X-Amz-Expires=|X-Amz-SignedHeaders=|20250615T123045Z|\ud800|\x00"
)
nearly = st.lists(st.sampled_from(fragments.split("|")), max_size=25).map("".join)


@settings(max_examples=500)
@given(
    authorization=anything | nearly,
    query=anything | nearly,
    path=anything,
    date=anything | st.just("20250615T123045Z"),
    header=st.sampled_from(["x-amz-date", "date"]),
)
def test_garbage_is_refused_or_nobodys_and_never_breaks_anything(
    authorization: str, query: str, path: str, date: str, header: str
) -> None:
    headers = {"host": "localhost", "authorization": authorization, header: date}
    request = Request("POST", path, query, headers, b"")
    with suppress(SignatureRefused):
        assert VERIFIER.verify(request, NOW_MS) is None
    key_id, region = unverified_scope(request)
    assert key_id is None or key_id
    assert region is None or region.replace("-", "").isalnum()


@pytest.mark.parametrize(
    ("authorization", "query", "expected"),
    [
        ("", "", (None, None)),
        ("Basic abc", "", (None, None)),
        ("AWS4-HMAC-SHA256 Credential=", "", (None, None)),
        ("AWS4-HMAC-SHA256 Credential=K", "", ("K", None)),
        ("AWS4-HMAC-SHA256 Credential=K/20250615/us-west-2/sqs/aws4_request", "", ("K", "us-west-2")),
        ("AWS4-HMAC-SHA256 Credential=K/20250615/../sqs/aws4_request", "", ("K", None)),
        ("AWS4-HMAC-SHA256 Credential=K/d/" + "r" * 65 + "/sqs/aws4_request", "", ("K", None)),
        ("", "X-Amz-Credential=K%2Fd%2Feu-west-1%2Fsqs%2Faws4_request&a=b", ("K", "eu-west-1")),
        ("", "X-Amz-Credential=%ff%2", ("\ufffd%2", None)),
    ],
)
def test_the_scope_can_be_read_without_keys(
    authorization: str, query: str, expected: tuple[str | None, str | None]
) -> None:
    headers = {"authorization": authorization} if authorization else {}
    assert unverified_scope(Request("POST", "/", query, headers)) == expected


# ---- our own signing


def test_our_header_signature_is_botocores_to_the_letter() -> None:
    for token in (None, "tok/en=="):
        theirs = signed_by_botocore(path="/000000000000/a%20b", query="b=2&a=%C3%A4", token=token)
        ours = sign(
            method="POST",
            host="localhost:9324",
            path="/000000000000/a%20b",
            query="b=2&a=%C3%A4",
            headers=JSON_HEADERS,
            body=theirs.body,
            key_id=KEY.key_id,
            secret=KEY.secret,
            region="eu-north-1",
            now_ms=NOW_MS,
            session_token=token,
        )
        assert ours["Authorization"] == theirs.headers["authorization"]
        assert ours["X-Amz-Date"] == theirs.headers["x-amz-date"]
        assert ours.get("X-Amz-Security-Token") == token


def test_a_timestamp_is_utc_to_the_second() -> None:
    assert sigv4_timestamp(NOW_MS + 999) == "20250615T123045Z"


# ---- secrets and codes


def test_no_representation_shows_the_secret() -> None:
    assert KEY.secret not in repr(KEY) + repr(KEY_AND_REGION) + str(KEY) + repr(VERIFIER)


def family(root: type[SignatureRefused]) -> Iterator[type[SignatureRefused]]:
    yield root
    for member in root.__subclasses__():
        yield from family(member)


def test_every_refusal_has_the_codes_of_the_contract() -> None:
    contract = {
        ("InvalidSignatureException", "SignatureDoesNotMatch", 403),
        ("UnrecognizedClientException", "InvalidClientTokenId", 403),
        ("IncompleteSignatureException", "IncompleteSignature", 400),
    }
    prefix = "com.amazon.coral.service#"
    codes = [one.code for one in family(SignatureRefused)]
    assert {(code.json_type.removeprefix(prefix), code.query_code, code.status) for code in codes} == contract
