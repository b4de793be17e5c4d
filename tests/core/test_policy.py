"""Policies: who gets in, who does not, and that doubt keeps people out."""

from __future__ import annotations

import fnmatch
import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil.core.errors import PolicyRefused
from veil.core.policy import (
    GRANTABLE_ACTIONS,
    OWNER_ONLY_ACTIONS,
    AccountRefused,
    ActionOwnerOnly,
    ActionsMissing,
    ActionsTooMany,
    LabelMissing,
    LabelRefused,
    LabelTaken,
    PolicyActionUnknown,
    PolicyMalformed,
    add_permission,
    evaluate,
    parse_policy,
    remove_permission,
)
from veil.core.policy_conditions import Wildcards

OWNER, OTHER, THIRD = "000000000000", "111122223333", "999999999999"
ARN = f"arn:aws:sqs:eu-north-1:{OWNER}:orders"
BATCHES = {"SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"}
ACTIONS = sorted(OWNER_ONLY_ACTIONS | GRANTABLE_ACTIONS | BATCHES)


def statement(**elements: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Principal": "*", "Action": "SQS:*", "Resource": ARN, **elements}


def may(
    *statements: dict[str, Any],
    caller: str | None = OTHER,
    action: str = "SendMessage",
    resource: str = ARN,
    context: dict[str, str] | None = None,
) -> bool:
    return evaluate(
        parse_policy(json.dumps({"Version": "2012-10-17", "Statement": list(statements)})),
        caller_account=caller,
        owner_account=OWNER,
        action=action,
        resource_arn=resource,
        context=context or {},
    )


# ---- the matrix


def test_there_are_twenty_three_actions() -> None:
    assert len(ACTIONS) == 23


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("caller", [OWNER, OTHER, None])
def test_who_may_do_what(action: str, caller: str | None) -> None:
    allow, deny = statement(), statement(Effect="Deny")
    is_owner, grantable = caller == OWNER, action not in OWNER_ONLY_ACTIONS
    assert may(allow, caller=caller, action=action) == (is_owner or grantable)
    assert not may(deny, caller=caller, action=action)
    assert not may(allow, deny, caller=caller, action=action)
    assert not may(deny, allow, caller=caller, action=action)
    # Named outright, an owner-only action is granted no more than by a wildcard.
    by_name = statement(Action=f"SQS:{action}")
    assert may(by_name, caller=caller, action=action) == (is_owner or grantable)
    elsewhere = statement(Action="SQS:PurgeQueue", Effect="Deny")
    assert may(allow, elsewhere, caller=caller, action=action) == (
        (is_owner or grantable) and action != "PurgeQueue"
    )


@pytest.mark.parametrize("single", ["SendMessage", "DeleteMessage", "ChangeMessageVisibility"])
def test_the_single_action_covers_its_batch_in_grants_denials_and_exceptions(single: str) -> None:
    for action in (single, f"{single}Batch"):
        assert may(statement(Action=f"SQS:{single}"), action=action)
        assert not may(statement(), statement(Effect="Deny", Action=f"SQS:{single}"), action=action)
        assert not may(statement(Principal={"AWS": OTHER}, Action="SQS:GetQueueUrl"), action=action)
        excepting = {
            key: value for key, value in statement(NotAction=f"SQS:{single}").items() if key != "Action"
        }
        assert not may(excepting, action=action)
    assert may(excepting, action="ReceiveMessage")


# ---- principals, actions, resources


@pytest.mark.parametrize(
    ("principal", "other", "third", "anonymous"),
    [
        ("*", True, True, True),
        ({"AWS": "*"}, True, True, True),
        ({"AWS": ["*"]}, True, True, True),
        ({"AWS": OTHER}, True, False, False),
        ({"AWS": f"arn:aws:iam::{OTHER}:root"}, True, False, False),
        ({"AWS": [f"arn:aws-cn:iam::{THIRD}:root", OTHER]}, True, True, False),
        ({"AWS": f"arn:aws:iam::{OTHER}:user/bob"}, False, False, False),
        ({"Service": "sns.amazonaws.com"}, False, False, False),
        ({"Service": "sns.amazonaws.com", "AWS": OTHER}, True, False, False),
    ],
)
def test_an_allow_reaches_whom_it_names(principal: Any, other: bool, third: bool, anonymous: bool) -> None:
    allow = statement(Principal=principal)
    assert (may(allow), may(allow, caller=THIRD), may(allow, caller=None)) == (other, third, anonymous)


def test_an_exception_reaches_everybody_else() -> None:
    allow = statement(NotPrincipal={"AWS": OTHER})
    del allow["Principal"]
    assert not may(allow)
    assert may(allow, caller=THIRD)
    deny = {**allow, "Effect": "Deny"}
    assert may(statement(), deny)
    assert not may(statement(), deny, caller=THIRD)
    assert not may(deny, caller=OWNER)


def test_a_user_within_an_account_counts_only_where_it_takes_access_away() -> None:
    user = {"AWS": f"arn:aws:iam::{OTHER}:user/bob"}
    assert not may(statement(), statement(Effect="Deny", Principal=user))
    assert may(statement(), statement(Effect="Deny", Principal=user), caller=THIRD)
    excepted = statement(NotPrincipal=user)
    del excepted["Principal"]
    assert not may(excepted)
    assert may(excepted, caller=THIRD)
    assert not may(statement(), {**excepted, "Effect": "Deny"})


@pytest.mark.parametrize(
    ("pattern", "yes"),
    [
        ("*", True),
        ("SQS:*", True),
        ("sqs:Send*", True),
        ("sqs:sendmessage", True),
        ("Sqs:S?ndMessage", True),
        ("sqs:*Message", True),
        ("sqs:Receive*", False),
        ("sqs:Send", False),
        (["sqs:ReceiveMessage", "sqs:SendMessage"], True),
    ],
)
def test_actions_match_without_regard_to_case(pattern: Any, yes: bool) -> None:
    assert may(statement(Action=pattern)) == yes


@pytest.mark.parametrize(
    ("pattern", "yes"),
    [
        (ARN, True),
        ("*", True),
        ("arn:aws:sqs:*:*:ord*", True),
        ("arn:aws:sqs:*:*:order?", True),
        ("arn:aws:sqs:*:*:ORDERS", False),
        ("arn:aws:sqs:us-east-1:*", False),
    ],
)
def test_resources_match_with_regard_to_case(pattern: str, yes: bool) -> None:
    assert may(statement(Resource=pattern)) == yes
    excepting = statement(NotResource=pattern)
    del excepting["Resource"]
    assert may(excepting) != yes


# ---- conditions

FACTS = {
    "aws:sourceip": "192.0.2.7",
    "aws:securetransport": "false",
    "aws:sourcearn": "arn:aws:sns:eu-north-1:111122223333:news",
    "aws:currenttime": "2025-06-15T12:00:00Z",
    "aws:epochtime": "1749988800",
    "aws:useragent": "Boto3/1.44",
    "x:count": "10",
}


@pytest.mark.parametrize(
    ("operator", "key", "value", "yes"),
    [
        ("StringEquals", "aws:UserAgent", "Boto3/1.44", True),
        ("StringEquals", "aws:UserAgent", "boto3/1.44", False),
        ("StringEquals", "aws:UserAgent", ["x", "Boto3/1.44"], True),
        ("StringNotEquals", "aws:UserAgent", ["x", "Boto3/1.44"], False),
        ("StringNotEquals", "aws:UserAgent", ["x", "y"], True),
        ("StringEqualsIgnoreCase", "aws:UserAgent", "BOTO3/1.44", True),
        ("StringNotEqualsIgnoreCase", "aws:UserAgent", "BOTO3/1.44", False),
        ("StringLike", "aws:UserAgent", "Boto?/*", True),
        ("StringNotLike", "aws:UserAgent", "Boto?/*", False),
        ("ArnEquals", "aws:SourceArn", "arn:aws:sns:*:111122223333:news", True),
        ("ArnLike", "aws:SourceArn", "arn:aws:sns:*:*:*", True),
        ("ArnLike", "aws:SourceArn", "arn:aws:*", False),
        ("ArnLike", "aws:SourceArn", "arn:aws:sns:*:n*", False),
        ("ArnNotLike", "aws:SourceArn", "arn:aws:sns:*:*:*", False),
        ("ArnNotEquals", "aws:SourceArn", "arn:aws:sns:*:*:olds", True),
        ("IpAddress", "aws:SourceIp", "192.0.2.0/24", True),
        ("IpAddress", "aws:SourceIp", "192.0.2.7", True),
        ("IpAddress", "aws:SourceIp", ["10.0.0.0/8", "2001:db8::/32"], False),
        ("NotIpAddress", "aws:SourceIp", "192.0.2.0/24", False),
        ("NotIpAddress", "aws:SourceIp", "10.0.0.0/8", True),
        ("Bool", "aws:SecureTransport", "false", True),
        ("Bool", "aws:SecureTransport", False, True),
        ("Bool", "aws:SecureTransport", "true", False),
        ("NumericEquals", "x:count", 10, True),
        ("NumericNotEquals", "x:count", "10.0", False),
        ("NumericLessThan", "x:count", "9.5", False),
        ("NumericLessThanEquals", "x:count", "10", True),
        ("NumericGreaterThan", "x:count", "9", True),
        ("NumericGreaterThanEquals", "x:count", "11", False),
        ("DateLessThan", "aws:CurrentTime", "2025-06-15T12:00:01Z", True),
        ("DateGreaterThan", "aws:CurrentTime", "2025-06-15", True),
        ("DateGreaterThanEquals", "aws:CurrentTime", "2025-06-15T14:00:00+02:00", True),
        ("DateEquals", "aws:EpochTime", "2025-06-15T12:00:00Z", True),
        ("DateNotEquals", "aws:EpochTime", "2025-06-15T12:00:00Z", False),
        ("DateLessThanEquals", "aws:EpochTime", 1749988799, False),
        ("Null", "aws:SourceIp", "false", True),
        ("Null", "aws:Nothing", "true", True),
        ("Null", "aws:Nothing", False, False),
        # An absent fact satisfies what is negated, optional or about all values, and nothing else.
        ("StringEquals", "aws:Nothing", "x", False),
        ("StringNotEquals", "aws:Nothing", "x", True),
        ("NotIpAddress", "aws:Nothing", "10.0.0.0/8", True),
        ("StringEqualsIfExists", "aws:Nothing", "x", True),
        ("StringEqualsIfExists", "aws:UserAgent", "x", False),
        ("ForAllValues:StringEquals", "aws:Nothing", "x", True),
        ("ForAnyValue:StringNotEquals", "aws:Nothing", "x", False),
        ("ForAnyValue:StringLike", "aws:UserAgent", ["Boto*"], True),
        ("ForAllValues:StringLike", "aws:UserAgent", ["x*"], False),
        ("stringequals", "AWS:USERAGENT", "Boto3/1.44", True),
    ],
)
def test_a_condition_holds_or_it_does_not(operator: str, key: str, value: Any, yes: bool) -> None:
    condition = {operator: {key: value}}
    assert may(statement(Condition=condition), context=FACTS) == yes
    assert may(statement(), statement(Effect="Deny", Condition=condition), context=FACTS) != yes


@pytest.mark.parametrize(
    ("operator", "key", "value"),
    [
        ("BinaryEquals", "aws:UserAgent", "eA=="),
        ("StringAlmostEquals", "aws:UserAgent", "x"),
        ("ForMostValues:StringEquals", "aws:UserAgent", "Boto3/1.44"),
        ("StringEquals", "aws:UserAgent", "${aws:username}"),
        ("IpAddress", "aws:UserAgent", "192.0.2.0/24"),  # the fact is no address
        ("NumericEquals", "aws:UserAgent", "1"),
        ("Bool", "aws:UserAgent", "true"),
    ],
)
def test_doubt_never_lets_anybody_in(operator: str, key: str, value: str) -> None:
    condition = {operator: {key: value}}
    assert not may(statement(Condition=condition), context=FACTS)
    assert not may(statement(), statement(Effect="Deny", Condition=condition), context=FACTS)
    # Doubt about one condition does not hide that another is plainly not met.
    with_another = {**condition, "Null": {"aws:SourceIp": "true"}}
    assert may(statement(), statement(Effect="Deny", Condition=with_another), context=FACTS)


def test_all_conditions_must_hold() -> None:
    both = {"StringLike": {"aws:UserAgent": "Boto*"}, "Bool": {"aws:SecureTransport": "true"}}
    assert not may(statement(Condition=both), context=FACTS)
    assert may(statement(Condition=both), context={**FACTS, "aws:securetransport": "true"})


def test_a_mapped_address_is_the_address_it_maps() -> None:
    only = statement(Condition={"IpAddress": {"aws:SourceIp": "192.0.2.0/24"}})
    assert may(only, context={"aws:sourceip": "::ffff:192.0.2.7"})
    assert not may(only, context={"aws:sourceip": "2001:db8::1"})


def test_a_denial_without_tls_binds_the_owner_too() -> None:
    deny = statement(Effect="Deny", Condition={"Bool": {"aws:SecureTransport": "false"}})
    assert not may(deny, caller=OWNER, context=FACTS)
    assert may(deny, caller=OWNER, context={"aws:securetransport": "true"})


# ---- documents


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a JSON document"),
        ("[]", "JSON object"),
        ("{}", "Statement"),
        ('{"Statement":[]}', "0 statements"),
        ('{"Statement":3}', "Statement"),
        ('{"Statement":[3]}', "Statement 1: expected an object"),
        ('{"Version":"2025-01-01","Statement":[]}', "Version '2025-01-01'"),
        ('{"Version":[],"Statement":[]}', "Version"),
        ('{"Id":1,"Statement":[]}', "Id"),
        ('{"Statement":[],"Statement":[]}', "twice"),
        ('{"Statement":NaN}', "NaN"),
        ('{"Foo":1,"Statement":[]}', "unknown element Foo"),
        ("[" * 8000, "not a JSON document"),
        (" " * 8193, "longer than 8192 bytes"),
        ('{"\\ud800":1}', "surrogate"),
        ('{"Id":"a\\udfffb","Statement":[]}', "surrogate"),
        # Python reads it as infinity, and would write that as a word which is no JSON.
        ('{"Statement":{"Condition":{"Some":{"key":1e400}}}}', "not a JSON document"),
    ],
)
def test_a_document_that_is_none_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(PolicyMalformed, match="policy: ") as caught:
        parse_policy(text)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("elements", "reason"),
    [
        ({"Effect": "Maybe"}, "Effect 'Maybe'"),
        ({"Effect": []}, "Effect"),
        ({"Sid": 3}, "Sid"),
        ({"Foo": 3}, "unknown element Foo"),
        ({"NotPrincipal": "*"}, "one of Principal and NotPrincipal"),
        ({"NotAction": "sqs:*"}, "one of Action and NotAction"),
        ({"NotResource": "*"}, "one of Resource and NotResource"),
        ({"Principal": "111122223333"}, "Principal"),
        ({"Principal": {}}, "Principal"),
        ({"Principal": {"AWS": []}}, "Principal"),
        ({"Principal": {"AWS": "bob"}}, "Principal 'bob'"),
        ({"Principal": {"AWS": "arn:aws:iam::*:root"}}, "Principal"),
        ({"Principal": {"Friend": "bob"}}, "unknown kind Friend"),
        ({"Action": "SendMessage"}, "Action 'SendMessage'"),
        ({"Action": "s3:GetObject"}, "Action 's3:GetObject'"),
        ({"Action": []}, "Action"),
        ({"Action": {"a": "b"}}, "Action"),
        ({"Resource": [3]}, "Resource"),
        ({"Resource": "arn:aws:sqs:*:*:${aws:username}"}, "policy variables"),
        ({"Condition": []}, "Condition"),
        ({"Condition": {"StringEquals": "x"}}, "Condition StringEquals"),
        ({"Condition": {"StringEquals": {"a": {"b": "c"}}}}, "condition StringEquals on a"),
        ({"Condition": {"StringEquals": {"a": []}}}, "condition StringEquals on a"),
        ({"Condition": {"IpAddress": {"aws:SourceIp": "300.1.1.1"}}}, "300.1.1.1"),
        ({"Condition": {"Bool": {"a": "maybe"}}}, "maybe"),
        ({"Condition": {"NumericEquals": {"a": "NaN"}}}, "NaN"),
        ({"Condition": {"NumericEquals": {"a": "ten"}}}, "ten"),
        ({"Condition": {"DateEquals": {"a": "soon"}}}, "soon"),
    ],
)
def test_a_bad_statement_is_refused_with_the_element(elements: dict[str, Any], reason: str) -> None:
    with pytest.raises(PolicyMalformed) as caught:
        may(statement(), statement(**elements))
    assert reason in caught.value.reason
    assert caught.value.reason.startswith("Statement 2: ")


def test_a_statement_needs_its_parts() -> None:
    for missing in ("Effect", "Principal", "Action", "Resource"):
        with pytest.raises(PolicyMalformed, match=missing):
            may({key: value for key, value in statement().items() if key != missing})


def test_the_limits_of_a_policy() -> None:
    may(*[statement()] * 20)
    with pytest.raises(PolicyMalformed, match="21 statements"):
        may(*[statement()] * 21)
    accounts = [f"{number:012}" for number in range(51)]
    may(statement(Principal={"AWS": accounts[:50]}))
    with pytest.raises(PolicyMalformed, match="51 principals"):
        may(statement(Principal={"AWS": accounts[:25]}), statement(Principal={"AWS": accounts[25:]}))
    keys = {f"aws:k{number}": "x" for number in range(11)}
    may(statement(Condition={"StringEquals": dict(list(keys.items())[:10])}))
    with pytest.raises(PolicyMalformed, match="11 conditions"):
        may(statement(Condition={"StringEquals": keys}))


def test_a_lone_statement_needs_no_list_and_the_text_is_normal() -> None:
    policy = parse_policy(json.dumps({"Statement": statement(Sid="one")}, indent=4))
    assert policy.text == json.dumps({"Statement": [statement(Sid="one")]}, separators=(",", ":"))
    assert parse_policy(policy.text).text == policy.text


def test_what_was_taken_can_be_read_again() -> None:
    # Written with escapes, or its numbers in full, a policy could outgrow the limit that it is read with.
    written_out = statement(Sid="\u4e2d" * 2_500)
    policy = parse_policy(json.dumps({"Statement": written_out}, ensure_ascii=False))
    assert parse_policy(policy.text).statements[0].sid == written_out["Sid"]
    numbers = statement(Condition={"NumericEquals": {"x:count": [1e15] * 1_500}})
    with pytest.raises(PolicyMalformed, match="longer than 8192 bytes"):
        parse_policy(
            json.dumps({"Statement": numbers}).replace("1000000000000000.0", "1e15").replace(" ", "")
        )


@settings(max_examples=300)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("*"),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["Statement", "Effect", "Principal", "AWS", "Action", "Resource", "Condition", "Bool"]
                ),
                inner,
                max_size=6,
            )
        ),
        max_leaves=15,
    )
)
def test_no_document_breaks_the_reader(document: Any) -> None:
    for text in (
        json.dumps(document),
        json.dumps({"Statement": document}),
        json.dumps({"Statement": [document]}),
    ):
        try:
            parse_policy(text)
        except PolicyMalformed as refused:
            assert refused.reason


# ---- permissions by label


def test_the_first_permission_makes_the_document_that_aws_makes() -> None:
    text = add_permission(None, ARN, "label", [OTHER], ["ReceiveMessage"])
    assert text == (
        f'{{"Version":"2008-10-17","Id":"{ARN}/SQSDefaultPolicy","Statement":[{{"Sid":"label","Effect":"Allow",'
        f'"Principal":{{"AWS":"arn:aws:iam::{OTHER}:root"}},"Action":"SQS:ReceiveMessage","Resource":"{ARN}"}}]}}'
    )
    policy = parse_policy(text)
    for caller, action, yes in (
        (OTHER, "ReceiveMessage", True),
        (OTHER, "SendMessage", False),
        (THIRD, "ReceiveMessage", False),
        (None, "ReceiveMessage", False),
    ):
        allowed = evaluate(
            policy, caller_account=caller, owner_account=OWNER, action=action, resource_arn=ARN, context={}
        )
        assert allowed == yes


def test_several_accounts_and_actions_become_lists() -> None:
    text = add_permission(None, ARN, "a", [OTHER, THIRD, OTHER], ["SendMessage", "*"])
    added = json.loads(text)["Statement"][0]
    assert added["Principal"] == {"AWS": [f"arn:aws:iam::{OTHER}:root", f"arn:aws:iam::{THIRD}:root"]}
    assert added["Action"] == ["SQS:SendMessage", "SQS:*"]


def test_permissions_come_and_go_by_label() -> None:
    first = add_permission(None, ARN, "a", [OTHER], ["SendMessage"])
    both = add_permission(first, ARN, "b", [THIRD], ["*"])
    assert [one["Sid"] for one in json.loads(both)["Statement"]] == ["a", "b"]
    with pytest.raises(LabelTaken):
        add_permission(both, ARN, "a", [OTHER], ["SendMessage"])
    assert remove_permission(both, "b") == first
    assert remove_permission(first, "a") is None
    for text in (None, first):
        with pytest.raises(LabelMissing):
            remove_permission(text, "b")


def test_a_permission_joins_a_policy_that_was_set_by_hand() -> None:
    by_hand = json.dumps({"Version": "2012-10-17", "Statement": statement(Effect="Deny")})
    text = add_permission(by_hand, ARN, "a", [OTHER], ["SendMessage"])
    assert json.loads(text)["Version"] == "2012-10-17"
    back = remove_permission(text, "a")
    assert back is not None
    assert json.loads(back)["Statement"] == [statement(Effect="Deny")]


@pytest.mark.parametrize("action", sorted(OWNER_ONLY_ACTIONS))
def test_an_owner_only_action_cannot_be_granted(action: str) -> None:
    with pytest.raises(ActionOwnerOnly, match=action):
        add_permission(None, ARN, "a", [OTHER], ["SendMessage", action])


@pytest.mark.parametrize("action", [*sorted(BATCHES), "sendmessage", "SQS:SendMessage", "", "Send*"])
def test_only_known_actions_can_be_granted(action: str) -> None:
    with pytest.raises(PolicyActionUnknown):
        add_permission(None, ARN, "a", [OTHER], [action])


def test_what_else_a_permission_needs() -> None:
    add_permission(None, ARN, "a", [OTHER], ["SendMessage"] * 7)
    with pytest.raises(ActionsTooMany) as many:
        add_permission(None, ARN, "a", [OTHER], ["SendMessage"] * 8)
    assert (many.value.count, many.value.count_max) == (8, 7)
    with pytest.raises(ActionsMissing):
        add_permission(None, ARN, "a", [OTHER], [])
    for accounts in ([], ["1"], [OTHER, "11112222333x"], ["１" * 12]):
        with pytest.raises(AccountRefused):
            add_permission(None, ARN, "a", accounts, ["SendMessage"])
    for label in ("", "a b", "a" * 81, "ä"):
        with pytest.raises(LabelRefused):
            add_permission(None, ARN, label, [OTHER], ["SendMessage"])


def test_the_twenty_first_permission_is_refused() -> None:
    text: str | None = None
    for number in range(20):
        text = add_permission(text, ARN, f"label{number}", [OTHER], ["SendMessage"])
    with pytest.raises(PolicyMalformed, match="21 statements"):
        add_permission(text, ARN, "one-more", [OTHER], ["SendMessage"])


def test_every_refusal_is_of_the_family() -> None:
    for kind in (PolicyMalformed, LabelRefused, LabelTaken, LabelMissing, AccountRefused, ActionsMissing):
        assert issubclass(kind, PolicyRefused)
    for kind in (ActionsTooMany, PolicyActionUnknown, ActionOwnerOnly):
        assert issubclass(kind, PolicyRefused)


# ---- wildcards


def fits(text: str, *patterns: str, arns: bool = False) -> bool:
    return Wildcards(patterns, arns=arns).match(text)


PATTERNS = st.lists(st.text("ab*?", max_size=10), max_size=4)


@settings(max_examples=1000)
@given(patterns=PATTERNS, text=st.text("ab*?", max_size=12))
def test_wildcards_agree_with_fnmatch(patterns: list[str], text: str) -> None:
    assert fits(text, *patterns) == any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


@settings(max_examples=1000)
@given(patterns=st.lists(st.text("a:*?", max_size=16), max_size=3), text=st.text("a:", max_size=12))
def test_the_wildcards_of_an_arn_stay_within_its_parts(patterns: list[str], text: str) -> None:
    def fits_by_parts(pattern: str) -> bool:
        parts, texts = pattern.split(":", 5), text.split(":", 5)
        return len(parts) == len(texts) == 6 and all(map(fnmatch.fnmatchcase, texts, parts))

    assert fits(text, *patterns, arns=True) == any(map(fits_by_parts, patterns))


@settings(max_examples=300)
@given(text=st.text(max_size=20), data=st.data())
def test_a_text_with_holes_matches_itself(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    assert fits(text, text[:start] + "*" + text[end:])
    assert fits(text, "?" * len(text))
    assert not fits(text, "?" * (len(text) + 1) + "*")


@pytest.mark.parametrize(
    "values",
    [
        ["*" + "a" * 500 + "b"],
        ["*" + "a" * 7_900 + "b"],
        ["a*" * 3_900 + "b"],
        ["*?a" * 2_600 + "b"],
        ["*a*b"] * 1_100,
        ["*" + "".join(map(chr, range(0x4E00, 0x4E00 + 1_200)))],
    ],
)
@pytest.mark.parametrize("operator", ["StringLike", "StringNotLike", "ArnLike"])
def test_no_policy_and_no_text_make_a_decision_expensive(operator: str, values: list[str]) -> None:
    if operator == "ArnLike":
        values = [f"a:a:a:a:a:{value}" for value in values[:400]]
    condition = {"Condition": {operator: {"aws:UserAgent": values}}}
    text = json.dumps({"Statement": [statement(Effect="Deny", **condition)]}, separators=(",", ":"))
    policy = parse_policy(text)
    for user_agent in ("a" * 30_000, "a:" * 512, "a" * 1_024, "".join(map(chr, range(0x4E00, 0x5200)))):
        began_s = time.thread_time()
        evaluate(
            policy,
            caller_account=OWNER,
            owner_account=OWNER,
            action="SendMessage",
            resource_arn=ARN,
            context={"aws:useragent": user_agent},
        )
        # Milliseconds; character by character over every pattern the first of them took nine seconds.
        assert time.thread_time() - began_s < 0.5


def test_a_policy_takes_little_more_memory_than_its_text() -> None:
    # A thousand are kept ready. One place for each character of 2,600 took seventy times the text.
    pattern = ".".join(map(chr, range(0x4E00, 0x4E00 + 1_900))) + "*"
    text = json.dumps({"Statement": statement(Resource=pattern)}, ensure_ascii=False)
    parse_policy(text)  # whatever is made once is there
    tracemalloc.start()
    try:
        policy = parse_policy(text)
        taken_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(policy.text.encode()) > 7_000
    assert taken_bytes < 10 * len(policy.text.encode())


def test_a_text_too_long_to_be_matched_is_one_that_nobody_knows() -> None:
    longest, too_long = "x" * 1_024, "x" * 1_025
    for operator in ("StringLike", "StringNotLike"):
        condition = {operator: {"aws:UserAgent": "*x" if operator == "StringLike" else "y*"}}
        allow, deny = statement(Condition=condition), statement(Effect="Deny", Condition=condition)
        assert may(allow, context={"aws:useragent": longest})
        assert not may(allow, context={"aws:useragent": too_long})
        assert not may(statement(), deny, context={"aws:useragent": too_long})
    # What is compared as a whole is known at any length.
    whole = statement(Condition={"StringEquals": {"aws:UserAgent": too_long}})
    assert may(whole, context={"aws:useragent": too_long})
