"""What holds for every test: none leaves its logging behind for the next; a database, and moto, for those that ask for one."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
from collections.abc import Iterator
from typing import Any, Final

import hypothesis
import pytest

from tests import quick_java
from tests.forked_veil import start_veil
from tests.postgres_kit import drop_database, new_database, why_no_postgres
from veil.testing import process
from veil.testing.process import VeilServer

pytest_plugins = ["tests.browser"]
_ALARM_AGAIN_S: Final = 20.0


def pytest_configure() -> None:
    VeilServer._popen = staticmethod(start_veil)
    process._STOP_TIMEOUT_S = 300.0  # a server that is killed has not exported the journal that a test reads
    _let_ctrl_c_work()
    quick_java.use(os.environ)
    # Hypothesis would take a machine that stands still for a test that is too slow.
    hypothesis.settings.register_profile(
        "veil", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("veil")


def _let_ctrl_c_work() -> None:
    """A job in the background is started with Ctrl-C ignored, and so would be everything that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Keep the modules and the thousands of tests out of the garbage collector's way: none of them goes before the end."""
    gc.disable()
    done = yield
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries complain of what is still there when the interpreter has gone
    gc.enable()
    return done


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Any) -> Iterator[Any]:
    """Let the alarm ring again and again: raised within a callback of an event loop, the loop keeps it to itself, and the test
    would hang for good. In the end it rings while the loop waits."""
    done = yield
    if settings.timeout and settings.timeout > 0 and signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, _ALARM_AGAIN_S)
    return done


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a PostgreSQL server, so that `make quick` can leave it out."""
    for item in items:
        if "postgres" in item.nodeid or "postgres" in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands that run in-process set up logging for their process, which here is everybody's."""
    root, own = logging.getLogger(), logging.getLogger("veil")
    before = list(root.handlers), root.level, own.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """Somebody else's SQS and S3, on this machine; what is made there stays, also for tests of other files."""
    from moto.server import ThreadedMotoServer

    # It tells of each request in its thread, also while a test looks at what Veil has logged.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def postgres() -> Iterator[str]:
    """The DSN of an empty database that is the test's own; the test is skipped where there is no PostgreSQL."""
    reason = why_no_postgres()
    if reason is not None:
        pytest.skip(reason)
    dsn = new_database()
    yield dsn
    drop_database(dsn)
