"""`veil pipeline`: the jobs on Spark, each in a file of its own that is imported when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

from veil.cli.app import CommandGroup, group

# The word after `veil pipeline`, and the file that adds it to the group.
JOBS = {
    "lifecycles": "veil.cli.pipeline.lifecycles",
    "files": "veil.cli.pipeline.lifecycles",
    "timeouts": "veil.cli.pipeline.timeouts",
    "report": "veil.cli.pipeline.timeouts",
    "route": "veil.cli.pipeline.route",
    "dead-letters": "veil.cli.pipeline.dead_letters",
    "redrive": "veil.cli.pipeline.dead_letters",
    "package": "veil.cli.pipeline.lifecycles",
}


class _Jobs(CommandGroup):
    """A group that knows its commands by name, and loads the file of one only to run or describe it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(JOBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in JOBS:
            return None
        import_module(JOBS[cmd_name])
        return typer.main.get_group(pipeline_app).commands[cmd_name]


pipeline_app = group("pipeline", cls=_Jobs)


@pipeline_app.callback()
def pipeline() -> None:
    """Work out from the past what timeouts should be, with Spark.

    The jobs turn the journal into tables with the life of every message, and these tables into the timeouts that the queues
    should have.
    """
