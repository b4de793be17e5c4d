"""What a Spark that is started here is given: sensible values, with whatever the person chose on top."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from veil.core.errors import VeilError

LOOPBACK: Final = "127.0.0.1"
UI_PORT: Final = 4040
DRIVER_MEMORY_MAX_MB: Final = 4096
DRIVER_MEMORY_MIN_MB: Final = 512  # with less, Spark refuses to start

# What results depend on, wherever the session comes from: hours and days are UTC's, and instants are written in the one
# form that every reader of Parquet takes (Spark's own default is one that pyarrow reads, and writes back otherwise).
MEANING: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


class SessionRefused(VeilError):
    """The settings cannot be had: a malformed one, or one that comes too late for a Spark that runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SparkSettings:
    """How to start Spark; `conf` wins over everything that Veil chooses."""

    master: str | None = None  # None: local[*]
    conf: Mapping[str, str] = field(default_factory=dict)
    title: str = "veil"
    brief: bool = False  # the work takes seconds: compile it quickly rather than well

    def __post_init__(self) -> None:
        if self.master is not None and not self.master.strip():
            raise SessionRefused(
                f"master {self.master!r}: expected a Spark master, such as local[4] or spark://HOST:7077"
            )
        for name in self.conf:
            if not name.startswith("spark."):
                raise SessionRefused(f"conf {name!r}: expected a name that begins with spark.")

    @property
    def where(self) -> str:
        """The master in effect."""
        return self.master or self.conf.get("spark.master") or "local[*]"

    @property
    def is_local(self) -> bool:
        """Whether all of Spark runs in one process on this machine."""
        return self.where.partition("[")[0] == "local"

    @property
    def asks_for_something(self) -> bool:
        """Whether somebody chose the master or any setting."""
        return self.master is not None or bool(self.conf)


def read_conf(pairs: Iterable[str]) -> dict[str, str]:
    """The settings of texts like `spark.x=1`; raises SessionRefused for a text that is none."""
    settings: dict[str, str] = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise SessionRefused(f"conf {text!r}: expected NAME=VALUE, such as spark.driver.memory=8g")
        settings[name.strip()] = value.strip()
    return settings


def chosen(settings: SparkSettings, home: Path) -> dict[str, str]:
    """Every setting of a Spark whose own files go under `home`."""
    conf = {
        **MEANING,
        "spark.driver.memory": f"{driver_memory_mb()}m",
        # Else Python tells the JVM for each column where in our code it was written: half of all it has to say.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.warehouse.dir": str(home / "warehouse"),  # else a directory appears wherever one stands
        "spark.ui.showConsoleProgress": "false",  # the command draws its own
    }
    if settings.brief:
        # Java's second compiler takes longer over a plan than such work does with the first one's.
        conf["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1"
    if settings.is_local:
        conf |= {
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.host": LOOPBACK,
            "spark.ui.port": str(_ui_port()),
        }
    return {**conf, **settings.conf, "spark.master": settings.where, "spark.app.name": settings.title}


def driver_memory_mb() -> int:
    """A third of the memory that this process may have, 4 GB at most."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such file, or "max" in it
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return max(DRIVER_MEMORY_MIN_MB, min(DRIVER_MEMORY_MAX_MB, total // 3 // 2**20))


def _ui_port() -> int:
    """The port that people know if it is free, else 0: any that is."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, UI_PORT))
        except OSError:
            return 0
    return UI_PORT
