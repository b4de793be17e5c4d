"""What the autopilot says of queues that a timeout cannot mend; whatever command it names can be run as it stands."""

from __future__ import annotations

import re
import shlex
from typing import Any

import msgspec
import typer.main

from veil.cli.pipeline import pipeline_app
from veil.core.autopilot import AutopilotPolicy
from veil.core.findings import CLEAR, NO_RENEWAL, NOT_ENOUGH, Finding
from veil.pipeline.autopilot.evidence import advice_on

WHOLE = Finding(
    region="eu-central-1", account="000000000000", queue="orders", message_type=None, since=None, until=None,
    leases=10_000, completed=9_000, censored=0, duplicates=0, crashes=0, present_timeout_s=30.0,
    recommended_timeout_s=60, policy=NO_RENEWAL, certainty=CLEAR, reason="", missing=None, mean_s=1.0, p50_s=1.0,
    p90_s=2.0, p99_s=5.0, p999_s=50.0, curve=[], candidates=[], replay=None,
)  # fmt: skip


def a_type(name: str, timeout_s: int, leases: int = 5_000) -> Finding:
    return msgspec.structs.replace(WHOLE, message_type=name, recommended_timeout_s=timeout_s, leases=leases)


def commands_in(advice: str) -> list[list[str]]:
    return [shlex.split(found) for found in re.findall(r"`veil pipeline ([^`]+)`", advice)]


def parsed(command: list[str]) -> Any:
    """The context in which the command line would run the command, with all its options."""
    group: Any = typer.main.get_command(pipeline_app)
    found = group.get_command(group.context_class(group), command[0])
    assert found is not None, command
    return found.make_context(command[0], command[1:])


def test_a_queue_that_is_well_gets_no_advice() -> None:
    assert advice_on(WHOLE, [a_type("a", 50), a_type("b", 60)], AutopilotPolicy()) == {}


def test_attempts_that_mostly_fail_are_pointed_out() -> None:
    failing = msgspec.structs.replace(WHOLE, failed=6_200)
    (advice,) = advice_on(failing, [], AutopilotPolicy()).values()
    assert advice.startswith("62 % of the attempts failed, which no timeout can fix")
    assert advice_on(msgspec.structs.replace(WHOLE, failed=4_900), [], AutopilotPolicy()) == {}


def test_long_work_without_renewal_is_told_to_renew() -> None:
    long = msgspec.structs.replace(WHOLE, recommended_timeout_s=1_800, p999_s=1_500.0)
    (advice,) = advice_on(long, [], AutopilotPolicy()).values()
    assert "let the consumers renew" in advice
    assert advice_on(long, [], AutopilotPolicy(renewal="adaptive")) == {}


def test_long_work_that_is_given_up_at_its_deadline_is_told_to_renew() -> None:
    given_up = msgspec.structs.replace(
        WHOLE, recommended_timeout_s=None, certainty=NOT_ENOUGH, present_timeout_s=900.0, censored=3_000
    )
    (advice,) = advice_on(given_up, [], AutopilotPolicy()).values()
    assert advice.startswith("30 % of the work is given up at its deadline, after 15 min")
    assert advice_on(given_up, [], AutopilotPolicy(renewal="adaptive")) == {}


def test_types_that_differ_get_queues_of_their_own_by_a_command_that_can_be_run() -> None:
    (advice,) = advice_on(
        WHOLE, [a_type("mail", 10), a_type("export", 900), a_type("rare", 9_000, 50)], AutopilotPolicy()
    ).values()
    assert "messages of type mail need 10 s and those of type export 15 min" in advice
    (command,) = commands_in(advice)
    given = parsed(command).params
    assert (given["intake"], given["learn"], given["create_queues"]) == ("orders", True, True)
    assert given["bands"] == "short=10s,long=900s"


def test_the_report_that_failures_are_looked_up_in_is_a_command() -> None:
    (advice,) = advice_on(msgspec.structs.replace(WHOLE, failed=6_200), [], AutopilotPolicy()).values()
    assert [parsed(command).info_name for command in commands_in(advice)] == ["report"]
