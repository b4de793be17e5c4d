"""The consumer under measurement: `python -m bench.consumer_veil ENDPOINT URL CONCURRENCY [PROFILE]`, until SIGTERM.

Says on stdout how many messages its handler was called for. With a file to write to, the run is profiled into it.
"""

from __future__ import annotations

import cProfile
import sys

from veil import Consumer


def main() -> None:
    """Consume, then say how many."""
    endpoint, url, concurrency = sys.argv[1:4]
    app = Consumer(url, endpoint=endpoint, region="us-east-1", concurrency=int(concurrency))
    handled = 0

    @app.handler
    async def nothing(body: str) -> None:
        nonlocal handled
        handled += 1

    if len(sys.argv) > 4:
        profile = cProfile.Profile()
        profile.runcall(app.run)
        profile.dump_stats(sys.argv[4])
    else:
        app.run()
    print("handled", handled)


if __name__ == "__main__":
    main()
