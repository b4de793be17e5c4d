"""The queries of the PostgreSQL store."""

from __future__ import annotations

from typing import Final

from veil.stores.named_queries import NamedQueries

Q: Final = NamedQueries("veil.stores.postgres", "queries.sql")
