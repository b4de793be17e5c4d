"""Messages are nobody else's: whatever the directory and the umask, other users of the machine read no file of the server."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.console.web import Visitor
from tests.waiting import until
from veil.stores.sqlite.recovery.backup import backup, restore
from veil.stores.sqlite.recovery.salvage import salvage
from veil.testing import VeilServer

VEIL = [sys.executable, "-P", "-m", "veil.cli.main"]

SECRET = "nobody-may-read-this"
NOBODY = 65_534


@pytest.fixture
def data() -> Iterator[Path]:
    """A directory that exists already and that everybody may look into, under a umask that hides nothing."""
    place = Path(tempfile.mkdtemp(prefix="veil-private-"))
    place.chmod(0o755)
    before = os.umask(0)
    try:
        yield place
    finally:
        os.umask(before)
        shutil.rmtree(place)


def open_to_others(place: Path) -> list[str]:
    """What others may read, write or list below the directory."""
    return sorted(
        f"{each.relative_to(place)} {stat.S_IMODE(each.lstat().st_mode):04o}"
        for each in place.rglob("*")
        if each.lstat().st_mode & 0o077
    )


def read_by_nobody(place: Path) -> str:
    """All that another user can read below the directory."""
    found = subprocess.run(
        ["find", str(place), "-type", "f", "-exec", "cat", "{}", "+"],
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, check=False,
    )  # fmt: skip
    return found.stdout.decode("latin-1")


def sent_to(server: VeilServer) -> None:
    client = server.client()
    url = client.create_queue(QueueName="private")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody=SECRET)


def test_everything_that_a_server_writes_is_its_owners_alone(data: Path):
    with VeilServer("--data", str(data), "--journal-interval-s", "0.1") as server:
        sent_to(server)
        visitor = Visitor(server)
        page = visitor.get("/console/queues/us-east-1/private/delete")
        # A line of the audit log.
        visitor.post("/console/queues/us-east-1/private/purge", {"token": page.token})
        until(lambda: any(data.rglob("*.parquet")))
        names = {each.name for each in data.rglob("*")}
        assert {"veil.db", "veil.db-wal", "veil.db-shm", "journal"} <= names
        assert open_to_others(data) == []
        if os.geteuid() == 0:
            assert read_by_nobody(data) == ""
            assert SECRET in (data / "veil.db-wal").read_bytes().decode("latin-1")
    assert open_to_others(data) == []


def test_files_that_were_open_to_others_are_closed_at_the_start_and_that_is_told(data: Path):
    with VeilServer("--data", str(data)) as server:
        sent_to(server)
    for each in data.rglob("*"):
        each.chmod(0o755 if each.is_dir() else 0o644)
    said = data.parent / f"{data.name}.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [*VEIL, "serve", "--port", "0", "--data", str(data), "--ready-file", str(data / "ready")],
            stderr=log,
        )
        try:
            until((data / "ready").exists)
            (data / "ready").chmod(0o600)  # it tells the address, to whoever waits for it
            assert [each for each in open_to_others(data) if each.startswith("veil.db")] == []
        finally:
            process.terminate()
            process.wait(120)
    text = said.read_text()
    said.unlink()
    assert "journal could be read by other users of this machine; now only its owner can" in text
    assert "veil.db could be read by other users of this machine; now only its owner can" in text


def test_backups_restored_and_salvaged_data_are_private_too(data: Path):
    origin = data / "origin"
    with VeilServer("--data", str(origin)) as server:
        sent_to(server)
    for name in ("restored", "salvaged", "backups"):
        (data / name).mkdir(mode=0o755)
    backup(origin, data / "backups" / "b.db")
    restore(data / "backups" / "b.db", data / "restored")
    salvage(origin, data / "salvaged")
    assert [each for each in open_to_others(data) if "/" in each] == []


def test_the_ready_file_is_never_written_through_a_link(tmp_path: Path):
    mine, ready = tmp_path / "mine", tmp_path / "ready"
    mine.write_text("mine")
    for name in ("ready.new", "ready"):
        (tmp_path / name).symlink_to(mine)
    process = subprocess.Popen(
        [*VEIL, "serve", "--port", "0", "--store", "memory", "--ready-file", str(ready)],
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: not ready.is_symlink())
        assert '"endpoint_url"' in ready.read_text()
        assert stat.S_IMODE(ready.stat().st_mode) == 0o644
    finally:
        process.terminate()
        assert process.wait(120) == 0
    assert mine.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mine", "ready.new"]


def test_no_file_has_the_name_of_a_queue_and_no_address_of_a_client_is_opened(data: Path):
    with (
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
        VeilServer("--data", str(data), "--journal-interval-s", "0.1") as server,
    ):
        address = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/000000000000/private"
        sent_to(server)
        body = json.dumps({"QueueUrl": address, "MessageBody": SECRET}).encode()
        headers = {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}
        with urlopen(Request(server.endpoint_url, body, headers), timeout=60) as answer:
            assert "MessageId" in json.load(answer)  # it went to the queue of that name
        until(lambda: any(data.rglob("*.parquet")))
        elsewhere.setblocking(False)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    assert list(data.rglob("*private*")) == []
