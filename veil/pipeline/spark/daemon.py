"""What Spark forks its Python workers from: PySpark's own daemon, without the zip that Spark puts first on its path.

What comes out of a zip is compiled anew by each process that imports it: half a second before the first row.
"""

from __future__ import annotations

import sys
from pathlib import Path


def leave_zips() -> None:
    """Import PySpark from its installation, where the zip on the path is a part of just that."""
    for entry in [Path(each) for each in sys.path if each.endswith("/pyspark.zip")]:
        package = entry.parents[2]  # pyspark/python/lib/pyspark.zip
        if (
            package.name == "pyspark"
            and (package / "__init__.py").exists()
            and str(package.parent) in sys.path
        ):
            sys.path[:] = [each for each in sys.path if Path(each).parent != entry.parent]


if __name__ == "__main__":
    leave_zips()
    from pyspark.daemon import manager

    manager()
