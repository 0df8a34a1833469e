"""The URLs that are asked, where redirects may lead, and the parts of a URL that are written
down."""

from __future__ import annotations

import asyncio
import socket

import pytest

from brisk.errors import InvalidModelError
from brisk.settings import remote_urls
from brisk.sourcing.sources.addresses import (
    MOST_REDIRECTS,
    OutwardResolver,
    check_outward,
    check_url,
    file_url,
    is_address,
    is_inside,
    leads_inside,
    redirected,
    shown_url,
)
from brisk.sourcing.sources.failures import SourceError

SECRETS = "https://me:pass@models.example:8443/a/manifest.json?sig=secret#part"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (SECRETS, "https://models.example:8443/a/manifest.json"),
        ("https://me@models.example/a", "https://models.example/a"),
        ("https://me:p@ss@models.example/a", "https://models.example/a"),
        ("s3://bucket/a?x=y", "s3://bucket/a"),
        ("file:///srv/models/a", "file:///srv/models/a"),
        ("https://[fd00::1]:1/a?b", "https://[fd00::1]:1/a"),
    ],
)
def test_what_is_shown_of_a_url_has_no_user_password_or_query(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize("url", ["https://[::1/a?secret", "https://h:99999/a?secret", "//[x"])
def test_what_is_no_url_is_refused_without_its_query(url: str) -> None:
    for check in (shown_url, lambda url: check_url(url, None)):
        with pytest.raises(InvalidModelError, match="is no URL") as refused:
            check(url)
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["https://me:pass@h:x/a", "https://me:pass@[h/a", "https://me:pass@h℀/a"]
)
def test_a_password_is_hidden_where_the_url_is_none(url: str) -> None:
    with pytest.raises(InvalidModelError, match="is no URL") as refused:
        check_url(url, None)
    assert "pass" not in str(refused.value)


@pytest.mark.parametrize(
    ("manifest_url", "name", "url"),
    [
        ("https://h/a/manifest.json", "b/c.bin", "https://h/a/b/c.bin"),
        ("https://h/manifest.json", "model.onnx", "https://h/model.onnx"),
        ("https://h/a/m.json?sig=x", "b", "https://h/a/b?sig=x"),
        ("https://me:p@h:8/a/m.json#f", "b", "https://me:p@h:8/a/b"),
        ("https://h/a/m.json", "a b?c#d%2e", "https://h/a/a%20b%3Fc%23d%252e"),
        ("s3://bucket/a/m.json", "ü", "s3://bucket/a/%C3%BC"),
        ("file:///srv/a/m.json", "b", "file:///srv/a/b"),
    ],
)
def test_a_file_lies_beside_its_manifest(manifest_url: str, name: str, url: str) -> None:
    assert file_url(manifest_url, name) == url


@pytest.mark.parametrize(
    "url", ["https://h/a", "http://h/a", "s3://b/a", "https://10.0.0.1/a", "https://me:p@h:1/a?b"]
)
def test_unless_urls_are_set_those_of_the_web_and_of_buckets_may_be_named(url: str) -> None:
    check_url(url, None)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///etc/passwd", "'file:///etc/passwd' is not allowed: https://, http:// and s3://"),
        ("ftp://h/a", "'ftp://h/a' is not allowed"),
        ("gopher://h/a", "others where BRISK_REMOTE_URLS names them"),
        ("https:///a", "names no host"),
        ("https:a", "names no host"),
        ("/a/b", "names no host"),
        ("", "names no host"),
        ("https://h/a/../b", "'https://h/a/../b' leads upwards; expected a path without"),
        ("https://h/a/%2e%2e/b", "leads upwards"),
        ("https://h/a/%2E./b", "leads upwards"),
        ("https://h/a/..%2fb", "leads upwards"),
        ("https://h/a\\..\\b", "leads upwards"),
        ("https://h/./a", "leads upwards"),
        ("https://me:pass@h/..", "'https://h/..' leads upwards"),
    ],
)
def test_a_url_that_no_entry_may_name_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidModelError, match=message) as refused:
        check_url(url, None)
    assert "pass@" not in str(refused.value)


ALLOWED = "https://models.example/team, s3://bucket, file:///srv/models/"


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://models.example/team/m.json", True),
        ("https://models.example/team", True),
        ("https://models.example/team/a/b?sig=x", True),
        ("https://me:p@models.example/team/a", True),
        ("HTTPS://models.example/team/a", True),
        ("https://models.example/teamwork/a", False),
        ("https://models.example/a", False),
        ("https://models.example/team/../a", False),
        ("https://models.example/team/%2e%2e/a", False),
        ("http://models.example/team/a", False),
        ("https://models.example:444/team/a", False),
        ("https://models.example.evil.example/team/a", False),
        ("https://models.example@evil.example/team/a", False),
        ("https://evil.example/https://models.example/team/a", False),
        ("s3://bucket/a/b", True),
        ("s3://bucket2/a", False),
        ("file:///srv/models/a/manifest.json", True),
        ("file:///srv/models2/a", False),
        ("file:///srv/models/../../etc/passwd", False),
        ("file://evil/srv/models/a", False),
    ],
)
def test_where_urls_are_set_only_what_begins_so_may_be_named(url: str, is_allowed: bool) -> None:
    allowed = remote_urls({"BRISK_REMOTE_URLS": ALLOWED})
    if is_allowed:
        check_url(url, allowed)
    else:
        with pytest.raises(InvalidModelError, match=r"is not allowed|leads upwards"):
            check_url(url, allowed)


def test_a_scheme_alone_allows_all_of_it() -> None:
    check_url("file:///anything", ("file://",))
    check_url("https://h/a", ("file://", "https://"))
    with pytest.raises(InvalidModelError, match="BRISK_REMOTE_URLS allows file://"):
        check_url("https://h/a", ("file://",))


FROM = "https://models.example/a/manifest.json?sig=secret"


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("https://store.example/x?y", "https://store.example/x?y"),
        ("/b", "https://models.example/b"),
        ("b", "https://models.example/a/b"),
        ("//store.example/x", "https://store.example/x"),
    ],
)
def test_a_redirect_is_followed_to_where_it_is_encrypted(location: str, target: str) -> None:
    assert redirected(FROM, location, 1) == target
    assert redirected(FROM, location, MOST_REDIRECTS) == target


@pytest.mark.parametrize(
    "location",
    [
        *("http://store.example/x", "file:///etc/passwd", "s3://bucket/x", "ftp://h/x"),
        *("data:text/plain,x", "javascript:x", "http:///x"),
    ],
)
def test_a_redirect_to_anything_else_is_refused(location: str) -> None:
    with pytest.raises(SourceError, match=r"redirects to .*; expected a https:// URL") as refused:
        redirected(FROM, location, 1)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "host",
    ["\u2460\u2461\u2466.\u24ea.\u24ea.\u2460", "\uff11\uff12\uff17.0.0.1", "127\u30020.0\u30021"],
)
def test_an_address_in_other_digits_is_told_from_a_name(host: str) -> None:
    """As a name, it would be left to the resolver, which nobody asks for what is an address."""
    assert redirected(FROM, f"https://{host}/x", 1) == "https://127.0.0.1/x"


def test_redirects_without_end_or_target_are_refused() -> None:
    with pytest.raises(SourceError, match=f"redirects more than {MOST_REDIRECTS} times"):
        redirected(FROM, "/b", MOST_REDIRECTS + 1)
    with pytest.raises(SourceError, match="redirects to nowhere"):
        redirected(FROM, "", 1)


def test_a_redirect_to_what_is_no_url_is_the_sources_fault() -> None:
    """Whoever answers writes it: it must not look like a fault of the entry."""
    with pytest.raises(SourceError):
        redirected(FROM, "https://[::1/x", 1)


INNER = [
    *("127.0.0.1", "127.255.0.1", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "0.0.0.0", "255.255.255.255", "192.0.2.1"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1", "fc00::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "2001:db8::1"),
    *("64:ff9b::a00:1", "2002:7f00:1::1"),  # translated (RFC 6052), wrapped (RFC 3056)
    "fec0::1",  # of a site (RFC 3879)
    *("", "localhost", "1.2.3", "0x7f000001", "example.com"),
]


@pytest.mark.parametrize("address", INNER)
def test_an_address_of_an_inner_network_is_told_and_refused(address: str) -> None:
    assert is_inside(address)
    with pytest.raises(OSError, match=r"a redirect leads to h, whose address .* is not public"):
        check_outward(address, "h")


@pytest.mark.parametrize("address", ["8.8.8.8", "172.32.0.1", "2606:4700::1", "::ffff:8.8.8.8"])
def test_a_public_address_is_told(address: str) -> None:
    assert not is_inside(address)
    check_outward(address, "h")


def test_addresses_are_told_from_names() -> None:
    assert all(map(is_address, ("10.0.0.1", "::1", "fe80::1%eth0")))
    assert not any(map(is_address, ("", "h", "10.0.0", "a::b::c", "models.example")))


def test_who_is_connected_to_after_a_redirect_is_looked_up_and_checked() -> None:
    async def look() -> None:
        resolver = OutwardResolver()
        for host in ("localhost", "127.0.0.1", "10.0.0.1"):
            with pytest.raises(OSError, match="is not public"):
                await resolver.resolve(host, 443, socket.AF_UNSPEC)
        addresses = await resolver.resolve("8.8.8.8", 443)
        assert [each["host"] for each in addresses] == ["8.8.8.8"]
        await resolver.close()
        assert await leads_inside("https://localhost/a")
        assert await leads_inside("http://[::1]:80/a")
        assert not await leads_inside("https://8.8.8.8/a")

    asyncio.run(look())
