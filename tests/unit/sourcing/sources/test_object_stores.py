"""Object stores by boto3, for which stands what its documentation says of its errors: it is not
installed everywhere."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from brisk.errors import InvalidConfigurationError, UnavailableError
from brisk.publishing.describing import Published
from brisk.publishing.writing import publish as write
from brisk.sourcing.sources.downloads import Web
from brisk.sourcing.sources.failures import SourceError
from brisk.sourcing.sources.registry import Registry
from support.remote.published import publish

URL = "s3://bucket/m/manifest.json"


class BotoCoreError(Exception):
    """What botocore itself finds wrong: a profile, a region, credentials."""


class ClientError(Exception):
    """What a service answers, also that of credentials."""


class Boto3Error(Exception):
    """What boto3 finds wrong with a transfer."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """``store(client)``: boto3 makes its clients so."""

    def stand_for_boto3(client: Callable[..., Any]) -> None:
        modules: dict[str, dict[str, Any]] = {
            "boto3": {"client": client},
            "boto3.exceptions": {"Boto3Error": Boto3Error},
            "botocore": {},
            "botocore.config": {"Config": dict},
            "botocore.exceptions": {"BotoCoreError": BotoCoreError, "ClientError": ClientError},
        }
        for name, contents in modules.items():
            module = ModuleType(name)
            vars(module).update(contents)
            monkeypatch.setitem(sys.modules, name, module)

    return stand_for_boto3


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: Any, **settings: Any) -> Any:
        raise error

    return fail


@pytest.fixture
def described(tmp_path: Path) -> Published:
    made = publish(tmp_path / "made", 1000)
    names = (file.name for file in made.manifest.files)
    return Published(made.manifest, dict(zip(names, made.contents, strict=True)))


@pytest.mark.parametrize(
    "error",
    [
        BotoCoreError("The config profile (nobody) could not be found"),
        ValueError("Invalid endpoint: nobody"),
    ],
)
def test_settings_with_which_nothing_can_be_written_are_told(
    store: Callable[[Callable[..., Any]], None], described: Published, error: Exception
) -> None:
    store(failing(error))
    with pytest.raises(InvalidConfigurationError, match=r"^s3://bucket: .*nobody"):
        write(described, "s3://bucket/m")


@pytest.mark.parametrize("kind", [BotoCoreError, ClientError, Boto3Error])
def test_a_store_that_takes_no_file_is_told_with_the_file(
    store: Callable[[Callable[..., Any]], None], described: Published, kind: type[Exception]
) -> None:
    client = SimpleNamespace(upload_fileobj=failing(kind("AccessDenied")))
    store(lambda service: client)
    with pytest.raises(UnavailableError, match=r"^s3://bucket/m/model\.onnx: AccessDenied"):
        write(described, "s3://bucket/m")


def sign(url: str = URL) -> str:
    return asyncio.run(Registry(url, Web())._address(url))


@pytest.mark.parametrize("kind", [BotoCoreError, ClientError, ValueError])
def test_a_url_that_cannot_be_signed_is_the_sources_fault(
    store: Callable[[Callable[..., Any]], None], kind: type[Exception]
) -> None:
    """Credentials that a service gives are asked for as a URL is signed."""
    client = SimpleNamespace(generate_presigned_url=failing(kind("no such role")))
    store(lambda service, config: client)
    with pytest.raises(SourceError, match=r"^s3://bucket/m/manifest\.json: no such role"):
        sign()


def test_one_thread_at_a_time_makes_a_client(store: Callable[[Callable[..., Any]], None]) -> None:
    """They share boto3's session; manifest and head of a model are asked for at once."""
    making = threading.Lock()

    def client(service: str, config: Any) -> Any:
        assert making.acquire(blocking=False), "two threads make clients at once"
        time.sleep(0.05)
        making.release()
        return SimpleNamespace(generate_presigned_url=lambda what, place, seconds: place["Key"])

    async def sign_all() -> list[str]:
        one, other = Registry(URL, Web()), Registry(URL, Web())
        return await asyncio.gather(*(each._address(URL) for each in (one, one, other)))

    store(client)
    assert asyncio.run(sign_all()) == ["m/manifest.json"] * 3
