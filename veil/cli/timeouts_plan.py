"""What setting the recommended timeouts would change in the queues as they are now, and which must be left alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from veil.cli.client import Client
from veil.cli.failures import ServiceError
from veil.core.findings import NOT_ENOUGH, Finding, Findings
from veil.pipeline import words

_TIMEOUT_MAX_S: Final = 43_200


class Planned(NamedTuple):
    """One queue: its timeout now and the one to set; or why it is left alone."""

    queue: str
    certainty: str
    before_s: int
    after_s: int
    refused: str | None = None


def plan(findings: Findings, client: Client, queues: Sequence[str]) -> list[Planned]:
    """Compare the findings about whole queues with the queues of the client's region; all queues unless some are named."""
    return [
        _planned(finding, client)
        for finding in findings.findings
        if finding.message_type is None and (not queues or finding.queue in queues)
    ]


def _planned(finding: Finding, client: Client) -> Planned:
    after_s = finding.recommended_timeout_s
    if after_s is None or finding.certainty == NOT_ENOUGH:
        return _alone(finding, f"not enough evidence: {finding.missing or finding.reason}")
    if not 0 <= after_s <= _TIMEOUT_MAX_S:
        return _alone(finding, f"recommended_timeout_s={after_s}: expected 0 to {_TIMEOUT_MAX_S}")
    if finding.region != client.place.region:
        return _alone(finding, f"it is in {finding.region}: say --region {finding.region}")
    try:
        before_s = int(client.attributes(finding.queue, "VisibilityTimeout")["VisibilityTimeout"])
    except ServiceError as error:
        if not error.is_missing_queue:
            raise
        return _alone(finding, "there is no such queue any more")
    analysed_s = finding.present_timeout_s
    if before_s != after_s and analysed_s is not None and round(analysed_s) != before_s:
        return _alone(
            finding,
            f"its leases began with {words.length(analysed_s)} and its timeout is {words.length(before_s)}: either it was "
            "changed since (run the pipeline again), or its consumers ask for a timeout of their own",
            before_s,
        )
    return Planned(finding.queue, finding.certainty, before_s, after_s)


def _alone(finding: Finding, why: str, before_s: int = 0) -> Planned:
    return Planned(finding.queue, finding.certainty, before_s, before_s, why)
