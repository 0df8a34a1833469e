"""The places to which a model is published: a folder, an HTTP server that takes PUT, an S3
bucket."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from brisk.copies.manifest import write_manifest
from brisk.copies.remote import MANIFEST
from brisk.errors import InvalidConfigurationError, UnavailableError
from brisk.publishing.describing import Published

TIMEOUT_S = 60.0
"""The time within which an HTTP server has to take anything of a file."""

_SCHEMES = ("file", "http", "https", "s3")

_KEPT_IN_PATHS = "/%!$&'()*+,;=:@~"
"""The characters of a URL's path that mean what they are: quoted ones are quoted already."""


def publish(
    published: Published, url: str, tell: Callable[[str], None] = lambda line: None
) -> str:
    """Write everything below ``url``, the manifest last. Return the text of ``model.remote``.

    ``tell`` is called with the name and size of each file. Raises InvalidConfigurationError for a
    place that cannot be written to, InvalidModelError for names that no host takes, both before
    anything is written; UnavailableError if the place does not take a file.
    """
    put, text = _writer(url), write_manifest(published.manifest)
    for name, content in published.contents.items():
        with _opened(content) as (file, size):
            tell(f"{name}: {size / 1e6:.1f} MB")
            put(name, file, size)
    put(MANIFEST, io.BytesIO(text), len(text))
    return remote_text(url, text)


def check_places(url: str, found_at: str) -> None:
    """Raise InvalidConfigurationError if nothing can be published to ``url``, or no host could
    fetch it from ``found_at``. Nobody is asked."""
    _writer(url)
    _place(found_at)


def remote_text(url: str, manifest: bytes) -> str:
    """Return the text of an entry's ``model.remote`` for a manifest below ``url``.

    Raises InvalidConfigurationError if that is no place.
    """
    sha256 = hashlib.sha256(manifest).hexdigest()
    return json.dumps({"url": f"{_place(url)}/{MANIFEST}", "sha256": sha256}, indent=1) + "\n"


def _place(url: str) -> str:
    """Return the URL of a place without what is the publisher's alone: user, password, query.

    Raises InvalidConfigurationError if it is of a scheme that is not known.
    """
    _check_scheme(url)
    if _split(url).scheme not in _SCHEMES:
        url = Path(os.path.abspath(url)).as_uri()
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, _host(parts), _path(parts), "", ""))


def _check_scheme(url: str) -> None:
    """Raise InvalidConfigurationError unless ``url`` is a folder, or of a scheme that is known."""
    parts = _split(url)
    if "://" in url and parts.scheme not in _SCHEMES:
        shown = urlunsplit((parts.scheme, _host(parts), parts.path, "", ""))
        raise InvalidConfigurationError(
            f"'{shown:.80}': expected a folder, or a URL of {', '.join(_SCHEMES)}"
        )


def _split(url: str) -> SplitResult:
    """Parse the URL of a place. Raises InvalidConfigurationError if the text is no URL."""
    try:
        return urlsplit(url)
    except ValueError as error:
        shown = re.sub("//[^/]*@", "//", url.partition("?")[0])
        raise InvalidConfigurationError(
            f"'{shown:.80}' is no URL; expected a folder, or a URL of {', '.join(_SCHEMES)}"
        ) from error


def _host(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _path(parts: SplitResult) -> str:
    """Return the URL's path as hosts request it: what no URL may contain is quoted."""
    return quote(parts.path.rstrip("/"), safe=_KEPT_IN_PATHS)


@contextlib.contextmanager
def _opened(content: Path | bytes) -> Iterator[tuple[BinaryIO, int]]:
    """Yield a file and its size."""
    if isinstance(content, bytes):
        yield io.BytesIO(content), len(content)
        return
    with open(content, "rb") as file:
        yield file, os.fstat(file.fileno()).st_size


_Put = Callable[[str, BinaryIO, int], None]


def _writer(url: str) -> _Put:
    _check_scheme(url)
    parts = _split(url)
    if parts.scheme in ("http", "https"):
        return _to_http(parts)
    if parts.scheme == "s3":
        return _to_s3(parts)
    folder = Path(unquote(parts.path) if parts.scheme == "file" else url)
    return lambda name, file, size: _put_file(folder / name, file)


def _put_file(target: Path, file: BinaryIO) -> None:
    """Write the file whole or not at all, readable by all: a web server may be another user."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with open(descriptor, "wb") as copy:
                while part := file.read(1 << 20):
                    copy.write(part)
            os.chmod(draft, 0o644)
            os.rename(draft, target)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as error:
        raise UnavailableError(f"{target} cannot be written: {error}") from error


def _to_http(parts: SplitResult) -> _Put:
    """Return what PUTs a file below the URL; its user and password go into a header alone."""
    headers = {}
    user_info, at, host = parts.netloc.rpartition("@")
    if at:
        token = base64.b64encode(unquote(user_info).encode()).decode()
        headers["Authorization"] = f"Basic {token}"

    def put(name: str, file: BinaryIO, size: int) -> None:
        path = f"{_path(parts)}/{quote(name)}"
        shown = urlunsplit((parts.scheme, host, path, "", ""))
        request = urllib.request.Request(
            urlunsplit((parts.scheme, host, path, parts.query, "")),
            data=file,
            method="PUT",
            headers={**headers, "Content-Length": str(size)},
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                return
        except urllib.error.HTTPError as error:
            error.close()
            raise UnavailableError(f"PUT {shown}: {error.code} {error.reason}") from error
        except (OSError, HTTPException, UnicodeError) as error:  # the last: of a host's name
            raise UnavailableError(f"PUT {shown}: {error}") from error

    return put


def _to_s3(parts: SplitResult) -> _Put:
    try:
        import boto3
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise InvalidConfigurationError(
            "publishing to s3:// needs boto3: pip install 'brisk-triton[s3]'"
        ) from error
    try:
        client: Any = boto3.client("s3")
    except (BotoCoreError, ValueError) as error:  # the profile, region or endpoint that is set
        raise InvalidConfigurationError(f"s3://{parts.netloc}: {error}") from error

    def put(name: str, file: BinaryIO, size: int) -> None:
        key = f"{unquote(parts.path).strip('/')}/{name}".lstrip("/")
        try:
            client.upload_fileobj(file, parts.netloc, key)
        except (Boto3Error, BotoCoreError, ClientError) as error:
            raise UnavailableError(f"s3://{parts.netloc}/{key}: {error}") from error

    return put
