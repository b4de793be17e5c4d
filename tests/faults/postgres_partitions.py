"""The network between two machines goes silent, and the standby beyond it is promoted while the old primary lives on with a node
beside it. Two network namespaces are the machines; a bridge in a third is the network.

Nothing that the old primary is asked for may be acknowledged: its synchronous standby is gone. That is what makes it safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import TracebackType

from tests.faults.client import Client
from tests.faults.postgres_kit import Stage, create_database, is_served, run_on_postgres
from tests.faults.postgres_promotions import STANDBY_SETTINGS, dsn_of, follow
from tests.faults.rig import Outcome
from tests.postgres_server import PostgresServer, why_no_server

PARTITIONS = 20
_LOAD_S = (0.5, 2.0)
_SILENT_S = (0.0, 3.0)  # before the standby is promoted
_BOTH_S = (1.0, 3.0)  # that both primaries live, cut off from each other and then not
_AWAY_S_MAX = 20.0  # a peer that is gone without a word is noticed by a timeout
_CLONE_NEWNET = 0x40000000
_ADDRESSES = ("198.18.0.1", "198.18.0.2")  # kept for tests of networks; they exist in the namespaces only


def why_no_network() -> str | None:
    """Why there can be no network of our own here; None where there can."""
    if why_no_server() is not None:
        return why_no_server()
    if os.getuid() != 0 or not shutil.which("ip") or not shutil.which("bridge"):
        return "network namespaces need root, and ip and bridge of iproute2"
    name = f"veil-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None if made.returncode == 0 else f"no network namespace can be made: {made.stderr.strip()}"


class Network:
    """Two machines, each reachable from here whatever becomes of the network between them."""

    def __init__(self) -> None:
        self._wire = f"veil-wire-{os.getpid()}"
        self.machines = (f"veil-left-{os.getpid()}", f"veil-right-{os.getpid()}")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._lent: list[asyncio.Server] = []

    def __enter__(self) -> Network:
        self._thread.start()
        try:
            for name in (self._wire, *self.machines):
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", self._wire, "link", "add", "wire", "type", "bridge")
            _ip("-n", self._wire, "link", "set", "wire", "up")
            for number, name in enumerate(self.machines):
                port = ("type", "veth", "peer", "name", f"port{number}", "netns", self._wire)
                _ip("-n", name, "link", "add", "eth0", *port)
                _ip("-n", self._wire, "link", "set", f"port{number}", "master", "wire", "up")
                _ip("-n", name, "address", "add", f"{_ADDRESSES[number]}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        asyncio.run_coroutine_threadsafe(self._take_back(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for name in (self._wire, *self.machines):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def set_cut(self, is_cut: bool) -> None:
        """Let nothing pass any more without a word to anybody, or let it pass again."""
        for number in range(2):
            # Ports that are isolated hear nothing of one another.
            how = ["dev", f"port{number}", "isolated", "on" if is_cut else "off"]
            subprocess.run(["bridge", "-n", self._wire, "link", "set", *how], check=True)

    @contextlib.contextmanager
    def on(self, machine: int) -> Iterator[None]:
        """What this thread starts and opens meanwhile is on that machine."""
        with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{self.machines[machine]}") as there:  # noqa: PTH123
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(here.fileno())

    def lend_port(self, machine: int, port: int) -> None:
        """Whoever connects to the port here reaches the one of that machine's loopback."""
        serving = asyncio.start_server(partial(self._pass_on, machine, port), "127.0.0.1", port)
        self._lent.append(asyncio.run_coroutine_threadsafe(serving, self._loop).result())

    async def _take_back(self) -> None:
        for server in self._lent:
            server.close()
        passing = asyncio.all_tasks() - {asyncio.current_task()}
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)

    async def _pass_on(
        self, machine: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with self.on(machine):
            there = socket.socket()
        there.setblocking(False)
        try:
            await self._loop.sock_connect(there, ("127.0.0.1", port))
            far_reader, far_writer = await asyncio.open_connection(sock=there)
        except OSError:
            there.close()
            writer.close()
            return
        ways = [_copy(reader, far_writer), _copy(far_reader, writer)]
        await asyncio.gather(*ways, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while some := await reader.read(1 << 16):
            writer.write(some)
            await writer.drain()
    finally:
        writer.close()


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns failed")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def run_partitions(cycles: int = PARTITIONS, seed: int = 1, *, synchronous: bool = True) -> Outcome:
    """Cut the network so many times, promote the standby, and mend the network while the old primary is still alive."""
    outcome = Outcome("postgres-partitions", seed)
    rng = random.Random(seed)
    settings = {**STANDBY_SETTINGS, "listen_addresses": "*"}
    servers = [PostgresServer(settings=settings, host=address) for address in _ADDRESSES]
    refused = 0
    with Network() as network:

        def begin() -> None:
            servers[0].create()
            with (servers[0].data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\nhost replication all samenet trust\n")
            with network.on(0):
                servers[0].start()
            create_database(servers[0])
            make_standby(1)

        def make_standby(machine: int) -> None:
            with network.on(machine):
                follow(servers[machine], servers[1 - machine])
            if not synchronous:
                servers[1 - machine].run_sql("ALTER SYSTEM SET synchronous_standby_names = ''")
                servers[1 - machine].run_sql("SELECT pg_reload_conf()")

        async def work(stage: Stage) -> None:
            nonlocal refused
            clients = [Client(node.port, retry_s=1.0) for node in stage.nodes]
            old = 0
            for _ in range(cycles):
                new = 1 - old
                await asyncio.sleep(rng.uniform(*_LOAD_S))
                network.set_cut(True)
                await asyncio.sleep(rng.uniform(*_SILENT_S))
                await asyncio.to_thread(servers[new].promote)
                await stage.until_served(time.monotonic(), stage.nodes[new].port)
                for is_cut in (True, False):
                    network.set_cut(is_cut)
                    until_s = time.monotonic() + rng.uniform(*_BOTH_S)
                    while time.monotonic() < until_s:
                        if await is_served(clients[old]) and is_cut:
                            outcome.add("two queues", "the node with the old primary acknowledged a send")
                        refused += 1
                await asyncio.to_thread(servers[old].stop, "kill")
                await asyncio.to_thread(make_standby, old)
                await stage.until_served(time.monotonic(), *(node.port for node in stage.nodes))
                old = new
            for client in clients:
                client.close()

        try:
            begin()
            run_on_postgres(outcome, dsn_of(*servers), work, nodes=2, network=network, away_s_max=_AWAY_S_MAX)
        finally:
            for server in servers:
                server.remove()
    outcome.done += f", {refused} sends to the node with the old primary"
    return outcome
