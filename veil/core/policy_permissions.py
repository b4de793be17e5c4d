"""Permissions by label: statements that are written into a queue's policy and taken out again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from veil.core.errors import PolicyRefused
from veil.core.policy import (
    GRANTABLE_ACTIONS,
    OWNER_ONLY_ACTIONS,
    is_account,
    parse_policy,
    read_document,
    write_document,
)

ACTIONS_MAX: Final = 7
LABEL_MAX: Final = 80


class LabelRefused(PolicyRefused):
    """The text cannot label a permission."""

    def __init__(self, label: str) -> None:
        super().__init__(f"label {label!r}: expected 1 to {LABEL_MAX} of A-Z a-z 0-9 _ -")
        self.label = label


class LabelTaken(PolicyRefused):
    """A permission of that label exists."""

    def __init__(self, label: str) -> None:
        super().__init__(f"label {label} already exists")
        self.label = label


class LabelMissing(PolicyRefused):
    """No permission of that label exists."""

    def __init__(self, label: str) -> None:
        super().__init__(f"there is no label {label}")
        self.label = label


class AccountRefused(PolicyRefused):
    """Nobody to give the permission to, or not an account id."""

    def __init__(self, accounts: Sequence[str]) -> None:
        super().__init__(f"accounts {list(accounts)}: expected at least one, of twelve digits each")
        self.accounts = tuple(accounts)


class ActionsMissing(PolicyRefused):
    """A permission for nothing."""

    def __init__(self) -> None:
        super().__init__("expected at least one action")


class ActionsTooMany(PolicyRefused):
    """More actions than one permission may name."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} actions, expected at most {ACTIONS_MAX}")
        self.count, self.count_max = count, ACTIONS_MAX


class ActionUnknown(PolicyRefused):
    """No action of that name can be granted; a batch form comes with its single one."""

    def __init__(self, action: str) -> None:
        super().__init__(f"action {action!r}: expected * or one of {', '.join(sorted(GRANTABLE_ACTIONS))}")
        self.action = action


class ActionOwnerOnly(PolicyRefused):
    """The action stays with the owner."""

    def __init__(self, action: str) -> None:
        super().__init__(f"action {action} is for the owner of the queue only")
        self.action = action


def add_permission(
    policy_text: str | None, queue_arn: str, label: str, account_ids: Sequence[str], actions: Sequence[str]
) -> str:
    """The policy with one more statement, which lets the accounts do the actions on this queue."""
    if not _is_label(label):
        raise LabelRefused(label)
    if not account_ids or not all(map(is_account, account_ids)):
        raise AccountRefused(account_ids)
    if not actions:
        raise ActionsMissing
    if len(actions) > ACTIONS_MAX:
        raise ActionsTooMany(len(actions))
    for action in actions:
        if action in OWNER_ONLY_ACTIONS:
            raise ActionOwnerOnly(action)
        if action != "*" and action not in GRANTABLE_ACTIONS:
            raise ActionUnknown(action)
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


def _is_label(text: str) -> bool:
    return (
        1 <= len(text) <= LABEL_MAX and text.isascii() and text.replace("-", "a").replace("_", "a").isalnum()
    )


def _one_or_many(texts: list[str]) -> str | list[str]:
    unique = list(dict.fromkeys(texts))
    return unique[0] if len(unique) == 1 else unique
