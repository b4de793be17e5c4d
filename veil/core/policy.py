"""Who may do what to a queue: a policy document, read once and asked about each request, and the permissions by label in it.

Doubt never lets anybody in: what Veil cannot decide (an unknown condition operator, a user or role within an
account) does not satisfy an Allow, and does satisfy a Deny.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from veil.core.errors import PolicyRefused
from veil.core.policy_conditions import Condition, Wildcards, parse_condition

POLICY_BYTES_MAX: Final = 8_192
STATEMENTS_MAX: Final = 20
PRINCIPALS_MAX: Final = 50
CONDITIONS_MAX: Final = 10

# Nobody but the owner may ever do these, whatever a policy says.
OWNER_ONLY_ACTIONS: Final = frozenset((
    "AddPermission", "CancelMessageMoveTask", "CreateQueue", "DeleteQueue", "ListMessageMoveTasks", "ListQueueTags",
    "ListQueues", "RemovePermission", "SetQueueAttributes", "StartMessageMoveTask", "TagQueue", "UntagQueue",
))  # fmt: skip
GRANTABLE_ACTIONS: Final = frozenset((
    "ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl", "ListDeadLetterSourceQueues",
    "PurgeQueue", "ReceiveMessage", "SendMessage",
))  # fmt: skip


class PolicyMalformed(PolicyRefused, text="policy: {reason}"):
    reason: str


@dataclass(frozen=True, slots=True)
class Statement:
    """One rule of a policy."""

    allows: bool  # else it denies
    sid: str | None
    # "*", an account id, an ARN within an account; "" for a kind Veil has no callers of.
    principals: tuple[str, ...]
    principals_excepted: bool  # NotPrincipal
    actions: Wildcards  # lower case, without the service's prefix
    actions_excepted: bool  # NotAction
    resources: Wildcards
    resources_excepted: bool  # NotResource
    conditions: tuple[Condition, ...]

    def applies(self, caller: str | None, action: str, resource_arn: str, facts: Mapping[str, str]) -> bool:
        """Whether this rule speaks of the request; `action` and the keys of `facts` are in lower case."""
        # A batch is many of the single action: who may (not) do the one may (not) do the other.
        named = self.actions.match(action) or self.actions.match(action.removesuffix("batch"))
        if named == self.actions_excepted:
            return False
        if self.resources.match(resource_arn) == self.resources_excepted:
            return False
        if not self._concerns(caller):
            return False
        doubt = not self.allows
        return all(
            doubt if answer is None else answer
            for answer in (condition.satisfied(facts) for condition in self.conditions)
        )

    def _concerns(self, caller: str | None) -> bool:
        # Veil knows accounts, not the users and roles within: such an ARN may or may not mean this caller. It
        # counts where that can only take access away: in a Deny, and in the exceptions of an Allow.
        doubt = self.allows == self.principals_excepted
        named = any(_names(principal, caller, doubt) for principal in self.principals)
        return named != self.principals_excepted


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy that was read and found sound; `text` is its normal form."""

    statements: tuple[Statement, ...]
    text: str


def evaluate(
    policy: Policy,
    *,
    caller_account: str | None,
    owner_account: str,
    action: str,
    resource_arn: str,
    context: Mapping[str, str],
) -> bool:
    """Whether the caller (None: anonymous) may do it; `context` has facts by lower-case key."""
    is_owner = caller_account is not None and caller_account == owner_account
    if not is_owner and action in OWNER_ONLY_ACTIONS:
        return False
    allowed = is_owner
    for statement in policy.statements:
        if allowed and statement.allows:
            continue
        if statement.applies(caller_account, action.lower(), resource_arn, context):
            if not statement.allows:
                return False
            allowed = True
    return allowed


def parse_policy(text: str) -> Policy:
    """The policy in a JSON text, or `PolicyMalformed` with the reason."""
    document = read_document(text)
    statements = tuple(
        _statement(raw, f"Statement {number}") for number, raw in enumerate(document["Statement"], 1)
    )
    if not 1 <= len(statements) <= STATEMENTS_MAX:
        raise PolicyMalformed(f"{len(statements)} statements, expected 1 to {STATEMENTS_MAX}")
    if (count := sum(len(one.principals) for one in statements)) > PRINCIPALS_MAX:
        raise PolicyMalformed(f"{count} principals, expected at most {PRINCIPALS_MAX}")
    if (count := sum(len(one.conditions) for one in statements)) > CONDITIONS_MAX:
        raise PolicyMalformed(f"{count} conditions, expected at most {CONDITIONS_MAX}")
    return Policy(statements, write_document(document))


def _check_size(text: str) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > POLICY_BYTES_MAX:
        raise PolicyMalformed(f"longer than {POLICY_BYTES_MAX} bytes")


def read_document(text: str) -> dict[str, Any]:
    """The JSON object, with its `Statement` made a list; the statements themselves are not looked at."""
    _check_size(text)
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
        # `\ud800` alone is JSON, and no text; 1e400 is JSON, and Python's infinity, which is none.
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise PolicyMalformed("not text: it has a lone surrogate") from None
    except (ValueError, RecursionError) as problem:
        raise PolicyMalformed(f"not a JSON document: {problem}") from None
    if not isinstance(document, dict):
        raise PolicyMalformed("expected a JSON object")
    if unknown := sorted(document.keys() - {"Version", "Id", "Statement"}):
        raise PolicyMalformed(f"unknown element {unknown[0]}")
    if document.get("Version", "2012-10-17") not in ("2008-10-17", "2012-10-17"):
        raise PolicyMalformed(f"Version {document['Version']!r}: expected 2008-10-17 or 2012-10-17")
    if not isinstance(document.get("Id", ""), str):
        raise PolicyMalformed("Id: expected text")
    statement = document.get("Statement")
    if isinstance(statement, dict):
        document["Statement"] = [statement]
    elif not isinstance(statement, list):
        raise PolicyMalformed("Statement: expected an object or a list of objects")
    return document


def write_document(document: Mapping[str, Any]) -> str:
    """The one normal form: no blanks, elements in the order given; it keeps to the limit too, since it is read again."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    _check_size(text)
    return text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Two elements of one name would mean one thing to the author and another to us.
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an element occurs twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_ELEMENTS = frozenset((
    "Sid", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource", "Condition",
))  # fmt: skip


def _statement(raw: Any, where: str) -> Statement:
    if not isinstance(raw, dict):
        raise PolicyMalformed(f"{where}: expected an object")
    if unknown := sorted(raw.keys() - _ELEMENTS):
        raise PolicyMalformed(f"{where}: unknown element {unknown[0]}")
    sid = raw.get("Sid")
    if sid is not None and not isinstance(sid, str):
        raise PolicyMalformed(f"{where}: Sid: expected text")
    if raw.get("Effect") not in ("Allow", "Deny"):
        raise PolicyMalformed(f"{where}: Effect {raw.get('Effect')!r}: expected Allow or Deny")
    principals, principals_excepted = _either(raw, "Principal", where)
    actions, actions_excepted = _either(raw, "Action", where)
    resources, resources_excepted = _either(raw, "Resource", where)
    if any("${" in one for one in _texts(resources, f"{where}: Resource")):
        # Read as plain text, a Deny on such a resource would silently deny nothing.
        raise PolicyMalformed(f"{where}: Resource: policy variables are not supported")
    return Statement(
        raw["Effect"] == "Allow",
        sid,
        _principals(principals, where),
        principals_excepted,
        Wildcards(_action(one, where) for one in _texts(actions, f"{where}: Action")),
        actions_excepted,
        Wildcards(_texts(resources, f"{where}: Resource")),
        resources_excepted,
        _conditions(raw.get("Condition", {}), where),
    )


def _either(raw: Mapping[str, Any], name: str, where: str) -> tuple[Any, bool]:
    if (name in raw) == (f"Not{name}" in raw):
        raise PolicyMalformed(f"{where}: expected one of {name} and Not{name}")
    return (raw[name], False) if name in raw else (raw[f"Not{name}"], True)


def _texts(raw: Any, where: str) -> list[str]:
    found = raw if isinstance(raw, list) else [raw]
    if not found or not all(isinstance(one, str) and one for one in found):
        raise PolicyMalformed(f"{where}: expected text or a list of texts")
    return found


def _principals(raw: Any, where: str) -> tuple[str, ...]:
    if raw == "*":
        return ("*",)
    if not isinstance(raw, dict) or not raw:
        raise PolicyMalformed(f'{where}: Principal: expected "*" or an object')
    found: list[str] = []
    for kind, names in raw.items():
        if kind not in ("AWS", "Service", "Federated", "CanonicalUser"):
            raise PolicyMalformed(f"{where}: Principal: unknown kind {kind}")
        for name in _texts(names, f"{where}: Principal"):
            found.append(_account_principal(name, where) if kind == "AWS" else "")
    return tuple(found)


def _account_principal(name: str, where: str) -> str:
    if name == "*" or is_account(name):
        return name
    parts = name.split(":", 5)
    if len(parts) != 6 or parts[0] != "arn" or parts[2] not in ("iam", "sts") or not is_account(parts[4]):
        raise PolicyMalformed(
            f"{where}: Principal {name!r}: expected *, an account id or an ARN of an account"
        )
    return parts[4] if parts[5] == "root" else name


def is_account(text: str) -> bool:
    """Whether the text has the form of an account id: twelve digits."""
    return len(text) == 12 and text.isascii() and text.isdigit()


def _names(principal: str, caller: str | None, doubt: bool) -> bool:
    if principal == "*":
        return True
    if caller is None:
        return False
    return principal == caller or (doubt and principal[:4] == "arn:" and principal.split(":", 5)[4] == caller)


def _action(text: str, where: str) -> str:
    if text == "*":
        return text
    service, _, name = text.lower().partition(":")
    if service != "sqs" or not name:
        raise PolicyMalformed(f"{where}: Action {text!r}: expected SQS: and the name of an action")
    return name


def _conditions(raw: Any, where: str) -> tuple[Condition, ...]:
    if not isinstance(raw, dict):
        raise PolicyMalformed(f"{where}: Condition: expected an object")
    found: list[Condition] = []
    for operator, keys in raw.items():
        if not isinstance(keys, dict) or not keys:
            raise PolicyMalformed(f"{where}: Condition {operator}: expected an object of keys and values")
        for key, values in keys.items():
            plain = [_plain(one) for one in (values if isinstance(values, list) else [values])]
            if not plain or not all(isinstance(one, str) for one in plain):
                expected = f"condition {operator} on {key}: expected text or a list of texts"
                raise PolicyMalformed(f"{where}: {expected}")
            try:
                found.append(parse_condition(operator, key, plain))
            except ValueError as problem:
                raise PolicyMalformed(f"{where}: {problem}") from None
    return tuple(found)


def _plain(value: Any) -> Any:
    # JSON's true and 1 may stand for "true" and "1".
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


ACTIONS_MAX: Final = 7
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")


class LabelRefused(PolicyRefused, text="label {label!r}: expected 1 to 80 of A-Z a-z 0-9 _ -"):
    label: str


class LabelTaken(PolicyRefused, text="label {label} already exists"):
    label: str


class LabelMissing(PolicyRefused, text="there is no label {label}"):
    label: str


class AccountRefused(PolicyRefused, text="accounts {accounts}: expected at least one, of twelve digits each"):
    accounts: list[str]


class ActionsMissing(PolicyRefused, text="expected at least one action"):
    pass


class ActionsTooMany(PolicyRefused, text="{count} actions, expected at most {count_max}"):
    count: int
    count_max: int


class PolicyActionUnknown(
    PolicyRefused, text=f"action {{action!r}}: expected * or one of {', '.join(sorted(GRANTABLE_ACTIONS))}"
):
    """A batch form comes with its single one."""

    action: str


class ActionOwnerOnly(PolicyRefused, text="action {action} is for the owner of the queue only"):
    action: str


def add_permission(
    policy_text: str | None, queue_arn: str, label: str, account_ids: Sequence[str], actions: Sequence[str]
) -> str:
    """The policy with one more statement, which lets the accounts do the actions on this queue."""
    if not _LABEL.fullmatch(label):
        raise LabelRefused(label)
    if not account_ids or not all(map(is_account, account_ids)):
        raise AccountRefused(list(account_ids))
    if not actions:
        raise ActionsMissing
    if len(actions) > ACTIONS_MAX:
        raise ActionsTooMany(len(actions), ACTIONS_MAX)
    for action in actions:
        if action in OWNER_ONLY_ACTIONS:
            raise ActionOwnerOnly(action)
        if action != "*" and action not in GRANTABLE_ACTIONS:
            raise PolicyActionUnknown(action)
    if policy_text is None:
        document: dict[str, Any] = {
            "Version": "2008-10-17",
            "Id": f"{queue_arn}/SQSDefaultPolicy",
            "Statement": [],
        }
    else:
        document = read_document(policy_text)
    if any(_sid(statement) == label for statement in document["Statement"]):
        raise LabelTaken(label)
    document["Statement"].append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": _one_or_many([f"arn:aws:iam::{account}:root" for account in account_ids])},
            "Action": _one_or_many([f"SQS:{action}" for action in actions]),
            "Resource": queue_arn,
        }
    )
    return parse_policy(write_document(document)).text  # the limits hold for what is written here, too


def remove_permission(policy_text: str | None, label: str) -> str | None:
    """The policy without the statement of that label; None when nothing is left of it."""
    if policy_text is None:
        raise LabelMissing(label)
    document = read_document(policy_text)
    kept = [statement for statement in document["Statement"] if _sid(statement) != label]
    if len(kept) == len(document["Statement"]):
        raise LabelMissing(label)
    document["Statement"] = kept
    return write_document(document) if kept else None


def _sid(statement: Any) -> object:
    return statement.get("Sid") if isinstance(statement, dict) else None


def _one_or_many(texts: list[str]) -> str | list[str]:
    unique = list(dict.fromkeys(texts))
    return unique[0] if len(unique) == 1 else unique
