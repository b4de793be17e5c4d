"""Requests and messages per second of every contender, part by part, in rounds that take turns."""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.contenders import ELASTICMQ, MOTO, NOOP, VEIL_CORE, WORKERS, Contender, contender
from bench.generator import LIFE, PARTS, SEND, Figure, Lap, generator, run_lap, warm_up

# Compiled on the way: it needs a while until its figures stand still.
_WARM_UP_S: Final = {ELASTICMQ: 4.0}
# So slow that more rounds would only be more waiting.
_ONE_SHORT_ROUND: Final = frozenset((MOTO,))
_SHORT_S: Final = 1.0
# Two generators may be this much faster than one by chance.
CHECK_SLACK: Final = 1.10


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures."""

    contenders: Sequence[str]
    parts: tuple[str, ...] = PARTS
    batches: Sequence[int] = (1, 10)
    connections: Sequence[int] = (1, 32, 128)
    rounds: int = 3
    seconds: float = 2.0
    warm_up_factor: float = 1.0
    build: Path = Path("build")


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one contender in one part; the reason instead where it is not available."""

    contender: str
    part: str
    batch: int
    connections: int
    rounds: int = 0
    requests_per_s: float = 0.0
    messages_per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    errors: int = 0
    server_us_per_request: float = 0.0
    store_us_per_request: float | None = None  # of that, where the store is a process of its own
    generator_us_per_request: float = 0.0
    server_cores: float = 0.0
    generator_cores: float = 0.0
    of_noop: float | None = None
    of_elasticmq: float | None = None
    of_one_core: float | None = None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class GeneratorCheck:
    """The empty handler under one generator and under two: more from two would mean that one is too slow."""

    one_per_s: float
    two_per_s: float
    generator_cores: float = 0.0  # of the one

    @property
    def passed(self) -> bool:
        """Whether one generator is enough."""
        return self.two_per_s <= self.one_per_s * CHECK_SLACK


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a run found."""

    labels: dict[str, str]
    rows: list[Row]
    check: GeneratorCheck | None

    def as_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        check = asdict(self.check) | {"passed": self.check.passed} if self.check else None
        return {
            "contenders": self.labels,
            "rows": [asdict(row) for row in self.rows],
            "generator_check": check,
        }


def measure(plan: Plan) -> Report:
    """Start every contender, measure all of them in turns, and stop them."""
    with _all_running(plan) as servers, generator() as load:
        present = [server for server in servers if server.missing is None]
        for server in present:
            _tell(f"warming up {server.label}")
            _warm_up(server, plan, load)
        check = _check_generator(present, plan, load)
        rows: list[Row] = []
        for connections in plan.connections:
            for batch in plan.batches:
                rows += _measure_scenario(servers, plan, load, batch, connections)
        return Report(
            {s.name: f"not available: {s.missing}" if s.missing else s.label for s in servers}, rows, check
        )


@contextlib.contextmanager
def _all_running(plan: Plan) -> Iterator[list[Contender]]:
    with contextlib.ExitStack() as stack:
        servers = []
        for name in plan.contenders:
            _tell(f"starting {name}")
            servers.append(stack.enter_context(contender(name, plan.build)))
        yield servers


def _warm_up(server: Contender, plan: Plan, load: ProcessPoolExecutor) -> None:
    seconds = _WARM_UP_S.get(server.name, 0.3) * plan.warm_up_factor
    for batch in plan.batches:
        lap = Lap(server.port, server.pid, (LIFE, *plan.parts), batch, 32, seconds, server.name == NOOP)
        load.submit(warm_up, lap).result()


def _measure_scenario(
    servers: Sequence[Contender], plan: Plan, load: ProcessPoolExecutor, batch: int, connections: int
) -> list[Row]:
    figures: dict[tuple[str, str], list[Figure]] = defaultdict(list)
    # In turns, so that whatever else slows the machine down slows all of them down.
    for number in range(plan.rounds):
        for server in servers:
            short = server.name in _ONE_SHORT_ROUND
            if server.missing is not None or (short and number):
                continue
            _tell(f"{connections} connections, batches of {batch}, round {number + 1}: {server.label}")
            seconds = min(_SHORT_S, plan.seconds) if short else plan.seconds
            lap = Lap(server.port, server.pid, plan.parts, batch, connections, seconds, server.name == NOOP)
            try:
                measured = load.submit(run_lap, lap).result()
            except TimeoutError as reason:  # one that is overwhelmed must not take the others' figures along
                _tell(f"given up: {reason}")
                continue
            for figure in measured:
                figures[server.name, figure.part].append(figure)
    rows = []
    for part in plan.parts:
        rates = {name: _per_s(figures[name, part]) for name in (NOOP, ELASTICMQ, VEIL_CORE)}
        for server in servers:
            if server.missing is not None:
                rows.append(
                    Row(server.name, part, batch, connections, missing=f"not available: {server.missing}")
                )
            else:
                rows.append(_row(server.name, part, batch, connections, figures[server.name, part], rates))
    return rows


def _per_s(figures: Sequence[Figure]) -> float | None:
    return median(f.requests / f.seconds if f.seconds else 0.0 for f in figures) if figures else None


def _row(
    name: str,
    part: str,
    batch: int,
    connections: int,
    figures: Sequence[Figure],
    rates: Mapping[str, float | None],
) -> Row:
    counted = [f for f in figures if f.requests]
    if not counted:
        return Row(name, part, batch, connections, missing="no answer within a round")
    per_s = _per_s(counted) or 0.0

    def share_of(base: str, *others: str) -> float | None:
        rate = rates[base]
        return per_s / rate if rate and name not in (base, *others) else None

    return Row(
        contender=name,
        part=part,
        batch=batch,
        connections=connections,
        rounds=len(counted),
        requests_per_s=per_s,
        messages_per_s=median(f.messages / f.seconds for f in counted),
        p50_ms=median(f.p50_ms for f in counted),
        p99_ms=median(f.p99_ms for f in counted),
        errors=sum(f.errors for f in counted),
        server_us_per_request=median(f.server_cpu_s / f.requests * 1e6 for f in counted),
        store_us_per_request=median(f.store_cpu_s / f.requests * 1e6 for f in counted)
        if name in WORKERS
        else None,
        generator_us_per_request=median(f.generator_cpu_s / f.requests * 1e6 for f in counted),
        server_cores=median(f.server_cpu_s / f.seconds for f in counted),
        generator_cores=median(f.generator_cpu_s / f.seconds for f in counted),
        of_noop=share_of(NOOP),
        of_elasticmq=share_of(ELASTICMQ, NOOP),
        of_one_core=share_of(VEIL_CORE, NOOP, ELASTICMQ),
    )


def _check_generator(
    present: Sequence[Contender], plan: Plan, load: ProcessPoolExecutor
) -> GeneratorCheck | None:
    limit = next((server for server in present if server.name == NOOP), None)
    if limit is None:
        return None
    _tell("checking that one generator is enough")
    connections = max(2, max(plan.connections))

    def lap(share: int) -> Lap:
        return Lap(limit.port, limit.pid, (SEND,), 1, connections // share, plan.seconds, canned=True)

    ones: list[float] = []
    twos: list[float] = []
    cores: list[float] = []
    with generator() as second:
        second.submit(warm_up, Lap(limit.port, limit.pid, (SEND,), 1, 1, 0.1, canned=True)).result()
        for _ in range(plan.rounds):
            (alone,) = load.submit(run_lap, lap(1)).result()
            ones.append(alone.requests / alone.seconds)
            cores.append(alone.generator_cpu_s / alone.seconds)
            both = [load.submit(run_lap, lap(2)), second.submit(run_lap, lap(2))]
            twos.append(sum(f.requests / f.seconds for run in both for f in run.result()))
    return GeneratorCheck(median(ones), median(twos), median(cores))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
