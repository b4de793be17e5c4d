"""The store for many nodes: any number of stateless Veil nodes on one PostgreSQL."""

from veil.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
