"""`veil pipeline package`: what spark-submit needs to run these jobs on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from veil.cli.failures import CommandFailed
from veil.cli.options import AsJson, argument
from veil.cli.output import say, say_json, talk
from veil.cli.pipeline import pipeline_app


@pipeline_app.command("package", epilog="Example: veil pipeline package cluster/")
def package(
    folder: Annotated[Path, argument("DIR", "Where to put the two files.")],
    as_json: AsJson = False,
) -> None:
    """Write the two files that spark-submit needs.

    With them the same jobs run on a cluster: the package as a zip for the workers, and a main file for the driver.
    """
    from veil.pipeline.spark.workers import package as write_package

    try:
        made = write_package(folder)
    except OSError as problem:
        raise CommandFailed(
            f"DIR {str(folder)!r}: expected a directory to write to ({problem.strerror})"
        ) from None
    if as_json:
        say_json({"zip": str(made.zip), "main": str(made.main)})
        return
    say(str(made.zip))
    say(str(made.main))
    talk(
        f"run it with: spark-submit --master URL --py-files {made.zip} {made.main} lifecycles --journal … --tables …"
    )
