"""What happened to each message: the journal's schema, and the export of a store's outbox as Parquet segments."""

from __future__ import annotations

import os
import sys
from typing import Any, cast


def import_arrow_alone() -> None:
    """Import Arrow without two things that nobody here needs: with its first array it imports pandas, a third of a second and
    forty megabytes, and each thread of numpy's linear algebra spins for a tenth of a second."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import pyarrow as pa

    class NoPandas:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "pandas":
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, cast(Any, NoPandas))
    try:
        pa.array([0]), pa.scalar(0)
    finally:
        sys.meta_path.remove(cast(Any, NoPandas))
