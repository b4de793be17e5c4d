"""Who may do what: the owner, another account, and nobody we know."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from tests.signing import sign
from tests.wire.kit import Refused, Wire, read_json, read_xml
from veil.core.policy import GRANTABLE_ACTIONS, OWNER_ONLY_ACTIONS
from veil.signing.sigv4 import canonical_query, signature, signing_key, sigv4_timestamp, string_to_sign
from veil.wire.actions import ACTIONS, EXTENSIONS
from veil.wire.exchange import Request, Response
from veil.wire.sigv4 import AccessKey, Verifier

OWNER, OTHER = "111111111111", "222222222222"
KEYS = {
    "OWNERKEY": AccessKey("OWNERKEY", "owner secret", OWNER),
    "OTHERKEY": AccessKey("OTHERKEY", "other secret", OTHER),
}
HOST = "localhost:9324"
ARN = f"arn:aws:sqs:us-east-1:{OWNER}:q"
URL = f"http://{HOST}/{OWNER}/q"

# What each action needs besides the queue, so that nothing but the access can be wrong with it.
GIVEN: dict[str, dict[str, Any]] = {
    "AddPermission": {"Label": "x", "AWSAccountIds": [OTHER], "Actions": ["SendMessage"]},
    "CancelMessageMoveTask": {"TaskHandle": "eyJ0YXNrSWQiOiAiMSIsICJzb3VyY2VBcm4iOiAi"},
    "ChangeMessageVisibility": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
    "ChangeMessageVisibilityBatch": {"Entries": [{"Id": "a", "ReceiptHandle": "x", "VisibilityTimeout": 1}]},
    "DeleteMessage": {"ReceiptHandle": "x"},
    "DeleteMessageBatch": {"Entries": [{"Id": "a", "ReceiptHandle": "x"}]},
    "GetQueueAttributes": {"AttributeNames": ["All"]},
    "GetQueueUrl": {"QueueName": "q", "QueueOwnerAWSAccountId": OWNER},
    "ListMessageMoveTasks": {"SourceArn": ARN},
    "RemovePermission": {"Label": "x"},
    "SendMessage": {"MessageBody": "x"},
    "SendMessageBatch": {"Entries": [{"Id": "a", "MessageBody": "x"}]},
    "SetQueueAttributes": {"Attributes": {"DelaySeconds": "0"}},
    "StartMessageMoveTask": {"SourceArn": ARN},
    "TagQueue": {"Tags": {"a": "b"}},
    "UntagQueue": {"TagKeys": ["a"]},
}
# By ARN, another account's queue is one that does not exist.
BY_ARN = ("ListMessageMoveTasks", "StartMessageMoveTask")
ON_THE_QUEUE = sorted(set(ACTIONS) - {"CreateQueue", "ListQueues", "CancelMessageMoveTask"})


class Signed(Wire):
    """A server with keys, and callers that sign."""

    def __init__(self) -> None:
        super().__init__(verifier=Verifier(KEYS))

    async def ask(self, key_id: str | None, action: str, **given: Any) -> Response:
        body = json.dumps({"QueueUrl": URL} | GIVEN.get(action, {}) | given).encode()
        headers = {"x-amz-target": action if "." in action else f"AmazonSQS.{action}"}
        if key_id is not None:
            added = sign(
                method="POST",
                host=HOST,
                path="/",
                headers=headers,
                body=body,
                key_id=key_id,
                secret=KEYS[key_id].secret,
                region="us-east-1",
                now_ms=self.clock.wall_ms(),
            )
            headers |= {name.lower(): value for name, value in added.items()}
        return await self.front_end.handle(Request("POST", "/", "", {"host": HOST} | headers, body))

    async def outcome(self, key_id: str | None, action: str, **given: Any) -> str:
        try:
            read_json(await self.ask(key_id, action, **given))
        except Refused as refused:
            return refused.code
        return "ok"

    async def owned(self, *, allow: list[str] | None = None, to: Any = "*", **more: Any) -> None:
        attributes = {}
        if allow is not None:
            statement = {"Effect": "Allow", "Principal": to, "Action": allow, "Resource": ARN} | more
            attributes["Policy"] = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        assert await self.outcome("OWNERKEY", "CreateQueue", QueueName="q", Attributes=attributes) == "ok"


@pytest.mark.parametrize("action", ON_THE_QUEUE)
async def test_without_a_policy_only_the_owner_is_let_in(action: str) -> None:
    async with Signed() as wire:
        await wire.owned()
        assert await wire.outcome("OWNERKEY", action) != "AccessDenied"
        refusal = "ResourceNotFoundException" if action in BY_ARN else "AccessDenied"
        assert await wire.outcome("OTHERKEY", action) == refusal
        assert await wire.outcome(None, action) == "AccessDenied"


@pytest.mark.parametrize("action", ON_THE_QUEUE)
async def test_a_policy_for_everybody_opens_what_can_be_granted(action: str) -> None:
    async with Signed() as wire:
        await wire.owned(allow=["SQS:*"])
        for key_id in ("OTHERKEY", None):
            outcome = await wire.outcome(key_id, action)
            denied = outcome in ("AccessDenied", "ResourceNotFoundException")
            assert denied == (action in OWNER_ONLY_ACTIONS), outcome


@pytest.mark.parametrize(
    "action", ["ReceiveMessage", "SendMessage", "DeleteMessage", "ChangeMessageVisibility"]
)
async def test_a_grant_covers_the_batch_form_and_nothing_else(action: str) -> None:
    async with Signed() as wire:
        await wire.owned(allow=[f"SQS:{action}"], to={"AWS": OTHER})
        for asked in sorted(GRANTABLE_ACTIONS | {a for a in ACTIONS if a.endswith("Batch")}):
            granted = await wire.outcome("OTHERKEY", asked) != "AccessDenied"
            assert granted == (asked.removesuffix("Batch") == action), asked
        assert await wire.outcome(None, action) == "AccessDenied"


async def test_a_missing_queue_of_another_account_looks_like_a_closed_one() -> None:
    async with Signed() as wire:
        await wire.owned()
        there = await wire.ask("OTHERKEY", "SendMessage")
        missing = await wire.ask("OTHERKEY", "SendMessage", QueueUrl=URL + "x")
        assert (there.status, missing.status) == (403, 403)
        assert there.body.replace(b"/q ", b"/qx ") == missing.body
        assert await wire.outcome("OWNERKEY", "SendMessage", QueueUrl=URL + "x") == (
            "AWS.SimpleQueueService.NonExistentQueue"
        )


async def test_accounts_have_their_own_queues_of_one_name() -> None:
    async with Signed() as wire:
        await wire.owned()
        made = read_json(await wire.ask("OTHERKEY", "CreateQueue", QueueName="q"))
        assert made["QueueUrl"] == f"http://{HOST}/{OTHER}/q"
        assert read_json(await wire.ask("OWNERKEY", "ListQueues")) == {"QueueUrls": [URL]}
        read_json(await wire.ask("OTHERKEY", "SendMessage", QueueUrl="q"))
        assert read_json(await wire.ask("OWNERKEY", "ReceiveMessage", QueueUrl="q")) == {}
        (found,) = read_json(
            await wire.ask("OTHERKEY", "ReceiveMessage", QueueUrl="q", AttributeNames=["All"])
        )["Messages"]
        assert found["Attributes"]["SenderId"] == OTHER


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues"])
async def test_nobody_we_know_can_create_or_list(action: str) -> None:
    async with Signed() as wire:
        with pytest.raises(
            Refused, match=f"403 .*AccessDenied: Access to the resource http://{HOST}/ is denied"
        ):
            read_json(await wire.ask(None, action, QueueName="q"))


async def test_a_bare_name_means_nothing_from_nobody() -> None:
    async with Signed() as wire:
        await wire.owned(allow=["SQS:*"])
        assert await wire.outcome(None, "SendMessage", QueueUrl="q") == "AccessDenied"
        assert await wire.outcome(None, "SendMessage") == "ok"


async def test_a_deny_wins_but_never_locks_the_owner_out() -> None:
    async with Signed() as wire:
        await wire.owned(allow=["SQS:*"], Effect="Deny")
        assert await wire.outcome("OWNERKEY", "SendMessage") == "AccessDenied"
        assert await wire.outcome("OWNERKEY", "SetQueueAttributes", Attributes={"Policy": ""}) == "ok"
        assert await wire.outcome("OWNERKEY", "SendMessage") == "ok"


async def test_conditions_see_the_callers_address() -> None:
    async with Signed() as wire:
        await wire.owned(allow=["SQS:SendMessage"], Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})
        body = b"Action=SendMessage&MessageBody=x"
        for peer, status in (("10.1.2.3:5", 200), ("11.1.2.3:5", 403), ("[::1]:5", 403), ("10.1.2.3", 200)):
            request = Request("POST", f"/{OWNER}/q", "", {"host": HOST}, body, peer)
            assert (await wire.front_end.handle(request)).status == status


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"DateLessThan": {"aws:CurrentTime": "2023-11-14T22:13:21Z"}}, True),  # a second from now
        ({"DateGreaterThan": {"aws:CurrentTime": "2023-11-14T22:13:21Z"}}, False),
        ({"NumericLessThanEquals": {"aws:EpochTime": "1700000000"}}, True),
        ({"StringEquals": {"aws:RequestedRegion": "us-east-1"}}, True),
        ({"ArnEquals": {"aws:PrincipalArn": f"arn:aws:iam::{OTHER}:root"}}, True),
        ({"ArnLike": {"aws:PrincipalArn": f"arn:aws:iam::{OWNER}:*"}}, False),
    ],
)
@pytest.mark.parametrize("effect", ["Allow", "Deny"])
async def test_conditions_see_when_where_and_who(condition: dict[str, Any], holds: bool, effect: str) -> None:
    async with Signed() as wire:
        everybody = {"Effect": "Allow", "Principal": "*", "Action": "SQS:*", "Resource": ARN}
        statements = [everybody | {"Effect": effect, "Condition": condition}]
        if effect == "Deny":
            statements.append(everybody)
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
        assert (
            await wire.outcome("OWNERKEY", "CreateQueue", QueueName="q", Attributes={"Policy": policy})
            == "ok"
        )
        allowed = holds == (effect == "Allow")
        assert await wire.outcome("OTHERKEY", "SendMessage") == ("ok" if allowed else "AccessDenied")


async def test_a_wrong_signature_is_refused_before_anything_else() -> None:
    async with Signed() as wire:
        await wire.owned(allow=["SQS:*"])
        for name in ("AmazonSQS.SendMessage", "AmazonSQS.Nonsense"):
            response = await wire.post(name, b"not json", authorization="AWS4-HMAC-SHA256 nonsense")
            with pytest.raises(Refused) as caught:
                read_json(response)
            assert (caught.value.code, caught.value.status) == ("IncompleteSignature", 400)


async def test_a_presigned_get_acts_for_its_signer() -> None:
    async with Signed() as wire:
        await wire.owned()
        date = sigv4_timestamp(wire.clock.wall_ms())
        scope = f"{date[:8]}/us-east-1/sqs/aws4_request"
        signed = {
            "Action": "SendMessage",
            "MessageBody": "from a link",
            "Version": "2012-11-05",
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"OWNERKEY/{scope}",
            "X-Amz-Date": date,
            "X-Amz-Expires": "60",
            "X-Amz-SignedHeaders": "host",
        }
        query = canonical_query((name.encode(), value.encode()) for name, value in signed.items())
        of_nothing = sha256(b"").hexdigest()
        text = string_to_sign("GET", f"/{OWNER}/q", query, {"host": HOST}, "host", of_nothing, date, scope)
        key = signing_key(KEYS["OWNERKEY"].secret, date[:8], "us-east-1", "sqs")
        query += f"&X-Amz-Signature={signature(key, text)}"
        link = Request("GET", f"/{OWNER}/q", query, {"host": HOST})
        assert read_xml(await wire.front_end.handle(link)).findtext("SendMessageResult/MessageId")
        wire.clock.advance(seconds=61)
        with pytest.raises(Refused) as caught:
            read_xml(await wire.front_end.handle(link))
        assert (caught.value.code, caught.value.status) == ("SignatureDoesNotMatch", 403)


async def test_a_stranger_cannot_cancel_a_task_by_pairing_it_with_his_own_queue() -> None:
    import base64

    async with Signed() as wire:
        dead = read_json(await wire.ask("OWNERKEY", "CreateQueue", QueueName="dead"))["QueueUrl"]
        arn = f"arn:aws:sqs:us-east-1:{OWNER}:dead"
        redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
        read_json(
            await wire.ask("OWNERKEY", "CreateQueue", QueueName="q", Attributes={"RedrivePolicy": redrive})
        )
        for _ in range(5):
            read_json(await wire.ask("OWNERKEY", "SendMessage", QueueUrl=dead))
        handle = read_json(
            await wire.ask(
                "OWNERKEY",
                "StartMessageMoveTask",
                SourceArn=arn,
                MaxNumberOfMessagesPerSecond=1,
                DestinationArn=ARN,
            )
        )["TaskHandle"]
        read_json(await wire.ask("OTHERKEY", "CreateQueue", QueueName="mine"))
        paired = json.loads(base64.b64decode(handle)) | {"sourceArn": f"arn:aws:sqs:us-east-1:{OTHER}:mine"}
        forged = base64.b64encode(json.dumps(paired).encode()).decode()
        for stolen in (handle, forged):
            assert await wire.outcome("OTHERKEY", "CancelMessageMoveTask", TaskHandle=stolen) == (
                "ResourceNotFoundException"
            )
        assert await wire.outcome("OWNERKEY", "CancelMessageMoveTask", TaskHandle=handle) == "ok"


# The two that describe name no queue: each caller is told of its own account.
@pytest.mark.parametrize("action", sorted(set(EXTENSIONS) - {"DescribeQueues", "DescribeMessage"}))
async def test_veils_own_actions_are_the_owners_alone(action: str) -> None:
    given = {
        "DeleteHolds": {"Stream": "s", "Owner": "o", "UpToBatch": 0},
        "ExtendHolds": {"Stream": "s", "Owner": "o", "VisibilityTimeout": 1},
        "OpenStream": {"Stream": "s", "Owner": "o"},
        "PauseQueue": {},
        "PeekMessages": {},
        "ResumeQueue": {},
        "ReceiveHold": {"Stream": "s", "Batch": 0, "Part": 0, "MaxNumberOfMessages": 1},
        "StartRedrive": {},
        "RedriveMessages": {"Entries": [{"Id": "a", "MessageId": "m", "SequenceNumber": "1"}]},
    }[action]
    async with Signed() as wire:
        await wire.owned(allow=["SQS:*"])
        assert await wire.outcome("OWNERKEY", f"Veil.{action}", **given) == "ok"
        for key_id in ("OTHERKEY", None):
            assert await wire.outcome(key_id, f"Veil.{action}", **given) == "AccessDenied"


@pytest.mark.parametrize(
    "sent", [f"/{OTHER}/./q", f"/{OTHER}//q", f"/{OTHER}/x/../q", f"/x/../{OTHER}/q", f"/{OTHER}/q/."]
)
async def test_a_request_goes_to_the_path_that_was_signed(sent: str) -> None:
    """SigV4 signs a path without its dot segments: who changes them on the way may not choose another queue by it."""
    async with Signed() as wire:
        for key_id in ("OWNERKEY", "OTHERKEY"):
            read_json(await wire.ask(key_id, "CreateQueue", QueueName="q"))
        body = b"Action=SendMessage&Version=2012-11-05&MessageBody=x"
        signature = sign(
            method="POST",
            host=HOST,
            path=f"/{OTHER}/q",
            headers={},
            body=body,
            key_id="OWNERKEY",
            secret=KEYS["OWNERKEY"].secret,
            region="us-east-1",
            now_ms=wire.clock.wall_ms(),
        )
        headers = {"host": HOST} | {name.lower(): value for name, value in signature.items()}
        for path in (f"/{OTHER}/q", sent):
            with pytest.raises(Refused) as refused:
                read_xml(await wire.front_end.handle(Request("POST", path, "", headers, body)))
            assert refused.value.code in ("AccessDenied", "SignatureDoesNotMatch")
        counted = read_json(
            await wire.ask("OWNERKEY", "GetQueueAttributes", AttributeNames=["ApproximateNumberOfMessages"])
        )
        assert counted["Attributes"]["ApproximateNumberOfMessages"] == "0"
