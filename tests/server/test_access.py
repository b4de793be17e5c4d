"""Who may speak to the server: hosts, origins and sites."""

from __future__ import annotations

import pytest

from tests.wire.kit import Refused, read_json, read_xml
from veil.server.access import AccessRules, forbidden, host_name, is_loopback
from veil.wire.exchange import Request

WITHOUT_KEYS = AccessRules(has_keys=False, allowed_hosts=("queue.internal", "*.test"))
WITH_KEYS = AccessRules(has_keys=True)


def a_request(method: str = "POST", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method, "/", "", {"host": "localhost:9324"} | named)


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:9324", "LOCALHOST:1", "127.0.0.1:9324", "127.9.9.9", "[::1]:9324", "veil:9324",
     "sqs.us-east-1.localhost:9324", "queue.internal", "a.b.test:80", "localhost.:9324", "[::ffff:127.0.0.1]"],
)  # fmt: skip
def test_names_of_this_machine_and_those_allowed_may_be_called(host):
    assert WITHOUT_KEYS.refusal(a_request(host=host)) is None
    assert WITHOUT_KEYS.refusal(a_request(host=host)) is None  # remembered


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9324", "", "127.0.0.1.evil.example", "localhost.evil.example", "notlocalhost",
     "10.0.0.1", "0.0.0.0", "[::]", "[::1", "localhost:x", "localhost@evil.example", "test", "eviltest",
     "queue.internal.evil", "localhost, evil.example", "2130706433"],
)  # fmt: skip
def test_a_foreign_host_is_refused_because_its_owner_may_point_it_anywhere(host):
    assert "is not a name of this server" in (WITHOUT_KEYS.refusal(a_request(host=host)) or "")


def test_with_keys_the_signature_covers_the_host():
    assert WITH_KEYS.refusal(a_request(host="evil.example")) is None


def test_the_host_of_the_base_url_may_be_called():
    rules = AccessRules(has_keys=False, base_url="https://queues.example:8443")
    assert rules.refusal(a_request(host="queues.example:8443")) is None


@pytest.mark.parametrize("rules", [WITHOUT_KEYS, WITH_KEYS])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://localhost"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "file://"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site", "origin": "http://localhost:9324"},
    ],
)
def test_requests_of_other_web_pages_are_refused(rules, headers):
    request = a_request(**headers)
    reason = rules.refusal(request)
    assert reason is not None
    response = forbidden(request, reason)
    assert response.status == 403
    assert not [name for name, _ in response.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://localhost:9324"},
        {"origin": "https://localhost:9324"},
        {"origin": "http://LOCALHOST:9324"},
        {"origin": "http://localhost", "host": "localhost"},
        {"origin": "http://localhost", "host": "localhost:80"},
        {"sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
    ],
)
def test_clients_and_our_own_pages_come_in(headers):
    assert WITHOUT_KEYS.refusal(a_request(**headers)) is None


def test_a_preflight_is_refused():
    assert WITH_KEYS.refusal(a_request("OPTIONS")) is not None


def test_each_client_gets_a_refusal_that_it_can_read():
    """A name that a container has and the server does not know is what a newcomer meets: the SDK must be able to say why."""
    told = "Host 'a\"b\\\\<é' is not a name of this server."
    for request in (
        a_request(host='a"b\\<é', x_amz_target="AmazonSQS.ListQueues"),
        Request("POST", "/", "", {"host": 'a"b\\<é'}, b"Action=ListQueues"),
        Request("GET", "/", "Action=ListQueues", {"host": 'a"b\\<é'}),
    ):
        response = forbidden(request, WITHOUT_KEYS.refusal(request) or "")
        read = read_json if "x-amz-target" in request.headers else read_xml
        with pytest.raises(Refused) as caught:
            read(response)
        assert (caught.value.status, caught.value.code) == (403, "AccessDenied")
        assert caught.value.message.startswith(told)
    page = a_request(host="evil.example")
    assert forbidden(page, "No.").body == b"No.\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "::ffff:127.0.0.1"])
def test_loopback_addresses_reach_no_other_machine(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "", "localhost.example.com"])
def test_everything_else_may(host):
    assert not is_loopback(host)


def test_a_host_is_read_strictly():
    assert host_name("[::1]:9324") == "::1"
    assert host_name("Name.:1") == "name"
    for odd in ("a b", "a/b", "é", ":1", "[a]b", "a:123456", "a:-1"):
        assert host_name(odd) is None
