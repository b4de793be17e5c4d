"""What one client may cost the server before it is turned away."""

from __future__ import annotations

from dataclasses import dataclass, fields

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpLimits:
    """The bounds of the HTTP layer, checked when made: a bad value raises ValueError with its name."""

    header_bytes_max: int = 32 * _KIB  # request line and headers together
    header_count_max: int = 100
    # A 1 MiB message triples in form encoding and grows sixfold in JSON escapes.
    body_bytes_max: int = 8 * _MIB
    body_bytes_total_max: int = 512 * _MIB  # large bodies of all connections together
    header_deadline_s: float = 10.0  # from the first byte of a request to the end of its headers
    body_deadline_s: float = 30.0  # from there to the end of its body
    idle_s: float = 75.0  # between requests; longer than the 60 s that load balancers keep theirs
    write_deadline_s: float = 30.0  # without a byte of the answer taken
    linger_s: float = 2.0  # how long a refused client may go on sending before the connection is cut
    write_buffer_bytes_max: int = 256 * _KIB  # beyond it nothing more is read from that client
    connections_max: int = 20_000
    # A connection idle for less than this is not given up for a newcomer: under a burst each would only evict
    # the one before it, which was just about to send.
    idle_spared_s: float = 1.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            # 64: below that no request fits, and every client would be refused.
            least = 64 if each.name == "header_bytes_max" else 0 if each.name.endswith("_s") else 1
            whole = isinstance(value, int) and not isinstance(value, bool)
            if each.name.endswith("_s"):
                if not (whole or isinstance(value, float)) or not least <= value < float("inf"):
                    raise ValueError(f"{each.name}={value!r}: expected a number of seconds, 0 or more")
            elif not whole or value < least:
                raise ValueError(f"{each.name}={value!r}: expected a whole number, {least} or more")
