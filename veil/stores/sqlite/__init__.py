"""The embedded store: one SQLite file, group commit, durable before it answers."""

from veil.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
