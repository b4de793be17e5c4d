"""`veil timeouts`: what was found is shown without Spark, and set on a real server."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Veil
from tests.pipeline.queue_histories import EXPONENTIAL, history_of
from veil.cli.pipeline.timeouts import SCHEDULES
from veil.client.api import ApiError, Failure
from veil.client.blocking import BlockingClient, CallFailed
from veil.core.findings import VERSION, Finding, Findings, decode, encode
from veil.pipeline.timeouts.history import Work
from veil.pipeline.timeouts.run import find_all


@pytest.fixture(scope="module")
def found() -> list[Finding]:
    """`orders` is too short at 10 s, `slow` too long at an hour, of `few` too little is known."""
    histories = {
        Work("us-east-1", "000000000000", "orders", ""): history_of(EXPONENTIAL, Random(1), leases=8_000, timeout_s=10),
        Work("us-east-1", "000000000000", "slow", ""): history_of(EXPONENTIAL, Random(2), leases=8_000, timeout_s=3_600),
        Work("us-east-1", "000000000000", "few", ""): history_of(EXPONENTIAL, Random(3), leases=37, timeout_s=30),
    }  # fmt: skip
    return find_all(histories, policies=SCHEDULES)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return tmp_path / "tables"


def save(tables: Path, found: list[Finding], *, days_old: int = 0, policy: str = "none") -> None:
    made_at = (datetime.now(UTC) - timedelta(days=days_old)).isoformat(timespec="seconds")
    tables.mkdir(exist_ok=True)
    (tables / "timeouts.json").write_bytes(encode(Findings(VERSION, made_at, 0.001, found, policy)))


@pytest.fixture
def queues(veil: Veil, tables: Path, found: list[Finding]) -> Path:
    """The queues as they were analysed, and the findings."""
    for queue, timeout_s in (("orders", 10), ("slow", 3_600), ("few", 30)):
        assert veil("queue", "create", queue, "--visibility-timeout", str(timeout_s)).code == 0
    save(tables, found)
    return tables


def timeout_of(veil: Veil, queue: str) -> int:
    return int(veil("queue", "show", queue, "--json").object["visibility_timeout_s"])


def test_show_lists_every_queue_with_its_recommendation(
    command: Veil, tables: Path, found: list[Finding]
) -> None:
    save(tables, found)

    ran = command("timeouts", "show", "--tables", str(tables))

    assert ran.code == 0
    header, *lines = ran.out.splitlines()
    assert header.split() == [
        "QUEUE", "LEASES", "PRESENT", "RECOMMENDED", "VERDICT", "CERTAINTY", "DUPLICATES", "HIDDEN", "P50", "P99",
    ]  # fmt: skip
    by_queue = {line.split()[0]: line for line in lines}
    assert set(by_queue) == {"few", "orders", "slow"}
    assert "not enough evidence" in by_queue["few"]
    assert "clear" in by_queue["orders"]


def test_show_of_one_queue_gives_the_reasons_in_words_and_the_candidates(
    command: Veil, tables: Path, found: list[Finding]
) -> None:
    save(tables, found)

    ran = command("timeouts", "show", "orders", "--tables", str(tables))

    assert ran.out.startswith("orders: 30 s (clear)\n")
    assert "with the present timeout of 10 s, these are" in ran.out
    assert "the mean of the completed work is" in ran.out
    assert "in the past, the recommended timeout would have meant" in ran.out
    assert "30 s *" in ran.out
    assert "\n  2 min " in ran.out
    few = command("timeouts", "show", "few", "--tables", str(tables)).out
    assert "few: no recommendation (not enough evidence)" in few
    assert "about 3,700 completed leases are needed to see 0.1 %; there are 37 so far." in few


def test_queues_of_one_name_are_told_apart_by_their_account_and_region(
    command: Veil, tables: Path, found: list[Finding]
) -> None:
    (orders,) = (each for each in found if each.queue == "orders")
    save(tables, [*found, msgspec.structs.replace(orders, account="111111111111")])

    whole = command("timeouts", "show", "--tables", str(tables))
    one = command("timeouts", "show", "orders", "--tables", str(tables))

    for account in ("000000000000", "111111111111"):
        assert f"orders ({account} in us-east-1)  " in whole.out
        assert f"orders ({account} in us-east-1): " in one.out
    assert "slow  " in whole.out


def test_show_as_json_has_all_that_is_known(command: Veil, tables: Path, found: list[Finding]) -> None:
    save(tables, found)

    ran = command("timeouts", "show", "orders", "--json", "--tables", str(tables))

    (expected,) = [each for each in found if each.queue == "orders"]
    assert msgspec.convert(ran.object, Finding) == expected


def test_without_findings_the_error_says_what_to_run(command: Veil, tables: Path) -> None:
    ran = command("timeouts", "show", "--tables", str(tables))

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"veil: no timeouts.json in {tables}; create it with: veil pipeline timeouts\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"{", "timeouts.json is not readable"),
        (
            b'{"version": 99, "made_at": "", "target_duplicates": 0.1, "findings": []}',
            "has version 99: expected 1",
        ),
    ],
)
def test_findings_that_cannot_be_read_are_told_in_one_line(
    command: Veil, tables: Path, text: bytes, told: str
) -> None:
    tables.mkdir()
    (tables / "timeouts.json").write_bytes(text)

    ran = command("timeouts", "show", "--tables", str(tables))

    assert ran.code == 1
    assert told in ran.err
    assert ran.err.count("\n") == 1


def test_a_queue_that_was_not_analysed_is_named(command: Veil, tables: Path, found: list[Finding]) -> None:
    save(tables, found)

    for word in ("show", "apply"):
        ran = command("timeouts", word, "oders", "--tables", str(tables))
        assert ran.code == 1
        assert "there are no recommendations for queue 'oders': expected one of few, orders, slow" in ran.err


def test_apply_sets_what_is_recommended_and_says_how_to_undo_it(veil: Veil, queues: Path) -> None:
    ran = veil("timeouts", "apply", "--yes", "--tables", str(queues))

    assert ran.code == 0
    assert "few: left alone, not enough evidence: about 3,700 completed leases" in ran.err
    assert "orders (clear)\n- visibility timeout  10 s\n+ visibility timeout  " in ran.err
    recommended = {
        each.queue: each.recommended_timeout_s
        for each in decode((queues / "timeouts.json").read_bytes()).findings
    }
    assert timeout_of(veil, "orders") == recommended["orders"] != 10
    assert timeout_of(veil, "slow") == recommended["slow"] != 3_600
    assert timeout_of(veil, "few") == 30
    undo = {line.split(":")[0]: line.split("undo: veil ")[1] for line in ran.out.splitlines()}
    for queue, timeout_s in (("orders", 10), ("slow", 3_600)):
        what, where = f"queue edit {queue} --visibility-timeout {timeout_s}s", "--endpoint http://127.0.0.1:"
        assert undo[queue].startswith(f"{what} {where}")
        assert undo[queue].endswith(" --region us-east-1")

    assert veil(*undo["orders"].split()).code == 0
    assert timeout_of(veil, "orders") == 10


def test_apply_again_finds_nothing_to_change(veil: Veil, queues: Path) -> None:
    veil("timeouts", "apply", "--yes", "--tables", str(queues))

    ran = veil("timeouts", "apply", "--tables", str(queues))

    assert (ran.code, ran.out) == (0, "")
    assert "orders: already" in ran.err
    assert "nothing to change" in ran.err


def test_apply_leaves_alone_what_was_found_for_another_accounts_queue_of_the_same_name(
    veil: Veil, queues: Path, found: list[Finding]
) -> None:
    (orders,) = (each for each in found if each.queue == "orders")
    theirs = msgspec.structs.replace(orders, account="111111111111", recommended_timeout_s=777)
    save(queues, [theirs, *found, theirs])
    ran = veil("timeouts", "apply", "orders", "--yes", "--json", "--tables", str(queues))
    assert ran.code == 0
    assert [each["after_s"] for each in ran.objects] == [orders.recommended_timeout_s]
    assert timeout_of(veil, "orders") == orders.recommended_timeout_s
    assert "in the account 111111111111" in ran.err
    save(queues, [msgspec.structs.replace(theirs, present_timeout_s=timeout_of(veil, "orders"))])
    assert veil("timeouts", "apply", "orders", "--yes", "--tables", str(queues)).code == 1


def test_apply_changes_only_the_queues_that_are_named(veil: Veil, queues: Path) -> None:
    ran = veil("timeouts", "apply", "orders", "--yes", "--json", "--tables", str(queues))

    assert ran.object["queue"] == "orders"
    assert (ran.object["before_s"], ran.object["changed"]) == (10, True)
    assert timeout_of(veil, "slow") == 3_600


def test_a_dry_run_shows_the_difference_and_changes_nothing(veil: Veil, queues: Path) -> None:
    ran = veil("timeouts", "apply", "--dry-run", "--tables", str(queues))

    assert (ran.code, ran.out) == (0, "")
    assert "- visibility timeout  1 h" in ran.err
    assert "dry run: nothing changed" in ran.err
    assert timeout_of(veil, "orders") == 10


def test_without_anybody_to_ask_nothing_is_changed(
    veil: Veil, queues: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/null").open() as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        ran = veil("timeouts", "apply", "--tables", str(queues))

    assert (ran.code, ran.out) == (2, "")
    assert (
        "Set the timeout of 2 queues? stdin is not a terminal, so nobody can answer: use --yes to go ahead."
        in ran.err
    )
    assert timeout_of(veil, "orders") == 10


def test_old_findings_are_asked_about(
    veil: Veil, queues: Path, found: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(queues, found, days_old=45)
    with Path("/dev/null").open() as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        ran = veil("timeouts", "apply", "--tables", str(queues))

    assert ran.code == 2
    assert "These recommendations are 45 days old" in ran.err
    assert veil("timeouts", "apply", "--yes", "--tables", str(queues)).code == 0


def test_a_queue_whose_timeout_is_not_the_one_analysed_is_left_alone(veil: Veil, queues: Path) -> None:
    veil("queue", "edit", "orders", "--visibility-timeout", "17")

    ran = veil("timeouts", "apply", "orders", "--yes", "--tables", str(queues))

    assert ran.code == 1
    assert "orders: left alone, its leases began with 10 s and its timeout is 17 s" in ran.err
    assert timeout_of(veil, "orders") == 17


def test_a_queue_that_is_gone_is_told_and_the_others_are_set(veil: Veil, queues: Path) -> None:
    veil("queue", "rm", "orders", "--yes")

    ran = veil("timeouts", "apply", "--yes", "--tables", str(queues))

    assert ran.code == 0
    assert "orders: left alone, the queue no longer exists" in ran.err
    assert timeout_of(veil, "slow") < 3_600


@pytest.mark.parametrize("refused", ["SetQueueAttributes", "GetQueueAttributes"])
def test_a_queue_that_refuses_is_told_and_the_others_are_set(
    veil: Veil, queues: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    called = BlockingClient.call

    def call(
        client: BlockingClient, action: str, given: Any = None, *, queue: Any = None, **more: Any
    ) -> Any:
        if (action, queue) == (refused, "orders"):
            denied = ApiError(Failure.FATAL, "AccessDenied", "not yours")
            raise CallFailed(denied, client.target, action, queue)
        return called(client, action, given, queue=queue, **more)

    with monkeypatch.context() as patched:
        patched.setattr(BlockingClient, "call", call)
        ran = veil("timeouts", "apply", "--yes", "--json", "--tables", str(queues))

    assert ran.code == 1
    assert [each["queue"] for each in ran.objects] == ["slow"]
    assert ran.err.count("AccessDenied: not yours") == 1
    assert "some queues could not be changed" in ran.err
    assert (timeout_of(veil, "orders"), timeout_of(veil, "slow")) == (10, 30)


def test_where_no_server_answers_apply_stops_at_once(
    command: Veil, tables: Path, found: list[Finding]
) -> None:
    save(tables, found)

    ran = command("timeouts", "apply", "--yes", "--endpoint", "http://127.0.0.1:1", "--tables", str(tables))

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("veil: no server answers at http://127.0.0.1:1")


def test_never_beyond_twelve_hours_whatever_the_file_says(
    veil: Veil, queues: Path, found: list[Finding]
) -> None:
    save(queues, [msgspec.structs.replace(each, recommended_timeout_s=50_000) for each in found])

    ran = veil("timeouts", "apply", "--yes", "--tables", str(queues))

    assert "orders: left alone, recommended_timeout_s=50000: expected 0 to 43200" in ran.err
    assert timeout_of(veil, "orders") == 10


def test_a_queue_of_another_region_is_left_to_that_region(
    veil: Veil, queues: Path, found: list[Finding]
) -> None:
    save(queues, [msgspec.structs.replace(each, region="eu-west-1") for each in found])

    ran = veil("timeouts", "apply", "--yes", "--tables", str(queues))

    assert "orders: left alone, it is in eu-west-1: use --region eu-west-1" in ran.err


def test_timeouts_that_need_renewal_say_so_before_they_are_set(
    veil: Veil, queues: Path, found: list[Finding]
) -> None:
    save(queues, found, policy="adaptive")

    ran = veil("timeouts", "apply", "--dry-run", "--tables", str(queues))

    assert "these timeouts assume consumers that renew their leases: adaptive" in ran.err


def test_showing_and_setting_load_neither_spark_nor_numpy(tables: Path, found: list[Finding]) -> None:
    save(tables, found)
    code = (
        "import sys\nfrom veil.cli.main import run\n"
        f"assert run(['timeouts', 'show', 'orders', '--tables', {str(tables)!r}]) == 0\n"
        "print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert set(done.stderr.split()).isdisjoint({"pyspark", "numpy", "pandas"})
