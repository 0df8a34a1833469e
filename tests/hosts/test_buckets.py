"""A bucket of a folder answers what clients ask that only read."""

from __future__ import annotations

import asyncio
import xml.etree.ElementTree
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

pytest.importorskip("aiohttp")
from aiohttp import ClientSession, web
from yarl import URL

from brisk_bench.fleet.web_server import Bucket

Answer = TypeVar("Answer")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    version = tmp_path / "bucket" / "models" / "one" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"0123456789")
    (version.parent / "config.pbtxt").write_text("name")
    return tmp_path


def ask(folder: Path, question: Callable[[ClientSession, str], Awaitable[Answer]]) -> Answer:
    async def asked() -> Answer:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", Bucket(folder).answer)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            async with ClientSession() as session:
                return await question(session, f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()

    return asyncio.run(asked())


def names(text: str, tag: str) -> list[str]:
    root = xml.etree.ElementTree.fromstring(text)
    return [each.text or "" for each in root.iter(f"{{{root.tag[1:].partition('}')[0]}}}{tag}")]


def test_folders_and_objects_are_listed_below_a_prefix(folder: Path) -> None:
    async def question(session: ClientSession, url: str) -> str:
        query = {"list-type": "2", "prefix": "models/one/", "delimiter": "/"}
        async with session.get(f"{url}/bucket", params=query) as answer:
            assert answer.status == 200
            return await answer.text()

    text = ask(folder, question)
    assert names(text, "Key") == ["models/one/config.pbtxt"]
    assert names(text, "Prefix")[1:] == ["models/one/1/"]


def test_an_object_has_a_size_and_bytes_of_which_a_part_can_be_asked(folder: Path) -> None:
    async def question(session: ClientSession, url: str) -> tuple[str, bytes, bytes]:
        place = f"{url}/bucket/models/one/1/model.onnx"
        async with session.head(place) as answer:
            size = answer.headers["Content-Length"]
        async with session.get(place) as answer:
            whole = await answer.read()
        async with session.get(place, headers={"Range": "bytes=2-4"}) as answer:
            assert answer.status == 206
            return size, whole, await answer.read()

    assert ask(folder, question) == ("10", b"0123456789", b"234")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/bucket/models/two", 404),
        ("GET", "/other", 404),
        ("GET", "/bucket/%2e%2e/bucket/models/one/config.pbtxt", 404),
        ("PUT", "/bucket/models/new", 405),
        ("HEAD", "/bucket", 200),
    ],
)
def test_other_questions_are_refused(folder: Path, method: str, path: str, status: int) -> None:
    async def question(session: ClientSession, url: str) -> int:
        async with session.request(method, URL(url + path, encoded=True)) as answer:
            return answer.status

    assert ask(folder, question) == status
