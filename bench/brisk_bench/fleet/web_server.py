"""A web server for a host of a rack, of a folder's files: a registry, or buckets as S3 has them.

    python -m brisk_bench.fleet.web_server files|buckets FOLDER

It reports its port as a line of JSON, and serves until it is killed. As ``files`` it serves those
below FOLDER, with ranges. As ``buckets`` it answers S3 clients that only read: folders below
FOLDER are buckets, addressed by path. Every client may read; signatures are ignored. Lists are not
cut into pages.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from xml.sax.saxutils import escape

from aiohttp import web

from brisk_bench.harness.programs import tell


class Bucket:
    """Answers requests for the buckets below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer with a bucket's head or list, or an object's head or bytes, also a range."""
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405)
        bucket, _, key = request.path.lstrip("/").partition("/")
        place = self._folder / bucket
        if not bucket or ".." in request.path.split("/") or not place.is_dir():
            return _failure(404, "NoSuchBucket")
        if not key:
            return self._list(request, bucket, place)
        file = place / key
        if not file.is_file():
            return _failure(404, "NoSuchKey")
        state = file.stat()
        headers = {
            "ETag": _tag(file),
            "Last-Modified": formatdate(state.st_mtime, usegmt=True),
            "Content-Type": "application/octet-stream",
        }
        if request.method == "HEAD":
            return web.Response(headers={**headers, "Content-Length": str(state.st_size)})
        return web.FileResponse(file, headers=headers, chunk_size=1 << 20)

    def _list(self, request: web.Request, bucket: str, place: Path) -> web.Response:
        prefix, delimiter = (request.query.get(name, "") for name in ("prefix", "delimiter"))
        objects, folders = [], dict[str, None]()
        for key, file in _objects(place):
            if not key.startswith(prefix):
                continue
            rest, is_below, _ = key[len(prefix) :].partition(delimiter or "\0")
            if is_below:
                folders[f"{prefix}{rest}{delimiter}"] = None
            else:
                size = file.stat().st_size
                tag = escape(_tag(file))
                objects.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>{tag}</ETag>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                    "<StorageClass>STANDARD</StorageClass></Contents>"
                )
        common = [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>"
                  for each in folders]  # fmt: skip
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(objects) + len(common)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>false</IsTruncated>{''.join(objects)}{''.join(common)}"
            "</ListBucketResult>"
        )
        return web.Response(text=text, content_type="application/xml")


def _objects(place: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(place.rglob("*")):
        if file.is_file():
            yield file.relative_to(place).as_posix(), file


def _tag(file: Path) -> str:
    state = file.stat()
    return f'"{hashlib.sha256(f"{state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:32]}"'


def _failure(status: int, code: str) -> web.Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code></Error>'
    return web.Response(status=status, text=text, content_type="application/xml")


def application(kind: str, folder: Path) -> web.Application:
    """Return the application that serves the files of a folder, or the buckets below it."""
    app = web.Application()
    if kind == "files":
        app.router.add_static("/", folder)
    else:
        app.router.add_route("*", "/{path:.*}", Bucket(folder).answer)
    return app


async def serve(made: web.Application) -> None:
    """Serve on a free port of all of this host's addresses, and report the port."""
    runner = web.AppRunner(made, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "0.0.0.0", 0)
    await site.start()
    tell(port=runner.addresses[0][1])
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(application(sys.argv[1], Path(sys.argv[2]))))
