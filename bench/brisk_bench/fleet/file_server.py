"""A plain web server of a folder's files, with ranges, for a host of a rack: a registry.

    python -m brisk_bench.fleet.file_server FOLDER

It says its port as a line of JSON, and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from aiohttp import web


async def serve(folder: Path) -> None:
    """On a free port of all of this host's addresses."""
    application = web.Application()
    application.router.add_static("/", folder)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "0.0.0.0", 0)
    await site.start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
