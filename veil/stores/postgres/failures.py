"""What PostgreSQL reports, in the words of the store: what may be redone, and what the caller must take as unknown."""

from __future__ import annotations

import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout

from veil.core.errors import StoreError, StoreFull, StoreUnavailable

# The transaction was rolled back as a whole, and the next try may well succeed.
REDOABLE = (errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation)
# Somebody else is in charge now, or will be: the node asks again on another connection.
_MOVED = (errors.ReadOnlySqlTransaction, errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow)
_FULL = (errors.DiskFull,)


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, or leads to a server that takes no writes."""
    if isinstance(error, _MOVED):
        return True
    # A failure that the server did not name came from the connection itself.
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is None


def in_our_words(error: Exception) -> StoreError:
    """The same as a StoreError."""
    if isinstance(error, PoolTimeout | PoolClosed):
        return StoreUnavailable("no connection to PostgreSQL could be had in time")
    if isinstance(error, _FULL):
        return StoreFull(f"PostgreSQL has no room left: {_first_line(error)}")
    if is_lost(error) or isinstance(error, psycopg.OperationalError):
        return StoreUnavailable(f"PostgreSQL is not available: {_first_line(error)}")
    return StoreError(f"PostgreSQL could not do it: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
