"""The command `veil`."""

from __future__ import annotations

# The first word of a command line, and the file that adds it to the root, in the order in which help lists them.
COMMANDS = {
    "serve": "veil.cli.serve",
    "run": "veil.cli.run",
    "queue": "veil.cli.queue",
    "msg": "veil.cli.msg",
    "dlq": "veil.cli.dlq",
    "top": "veil.cli.watch",
    "leases": "veil.cli.watch",
    "doctor": "veil.cli.doctor",
    "demo": "veil.demo.command",
    "timeouts": "veil.cli.timeouts",
    "autopilot": "veil.cli.autopilot",
    "pipeline": "veil.cli.pipeline",
    "journal": "veil.cli.journal",
    "config": "veil.cli.serve",
    "backup": "veil.cli.store",
    "restore": "veil.cli.store",
    "verify": "veil.cli.store",
    "store": "veil.cli.store",
    "migrate": "veil.cli.store",
}
