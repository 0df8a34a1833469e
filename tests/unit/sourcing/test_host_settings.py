"""The settings of other hosts and of where models come from: taken, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.settings import (
    OF_THE_RUNTIME,
    PEER_KEYS,
    PEER_LISTEN,
    PEERS,
    REMOTE_URLS,
    VARIABLES,
    HostAddress,
    peer_keys,
    peer_listen,
    peers,
    remote_urls,
)


def test_nothing_set_is_no_peer_no_port_no_key_and_no_prefix() -> None:
    for environment in ({}, {PEERS: "", PEER_LISTEN: "", PEER_KEYS: "", REMOTE_URLS: ""}):
        assert peers(environment) == ()
        assert peer_listen(environment) is None
        assert peer_keys(environment) is None
        assert remote_urls(environment) is None
    assert peers({PEERS: " ,, "}) == ()


def test_they_are_known_and_servers_need_not_have_them_alike() -> None:
    names = {PEERS, PEER_LISTEN, PEER_KEYS, REMOTE_URLS}
    assert names <= VARIABLES
    assert not names & set(OF_THE_RUNTIME)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.2:7700", HostAddress("10.0.0.2", 7700)),
        (" gpu-1.example:1 ", HostAddress("gpu-1.example", 1)),
        ("[fd00::1]:65535", HostAddress("fd00::1", 65535)),
        ("localhost:07700", HostAddress("localhost", 7700)),
    ],
)
def test_a_host_and_port_is_read_and_shown_alike(text: str, address: HostAddress) -> None:
    assert peers({PEERS: text}) == (address,)
    assert peer_listen({PEER_LISTEN: text}) == address
    assert peers({PEERS: str(address)}) == (address,)


def test_peers_stand_with_commas_between_them() -> None:
    addresses = peers({PEERS: "10.0.0.2:1, [::1]:2,,b:3,"})
    assert addresses == (HostAddress("10.0.0.2", 1), HostAddress("::1", 2), HostAddress("b", 3))


@pytest.mark.parametrize(
    "text",
    [
        *("10.0.0.2", ":7700", "h:", "h:0", "h:65536", "h:-1", "h:+1", "h:1.0", "h:x", "h:٣"),
        *("fd00::1:7700", "[]:7700", "http://h:1", "h/a:1", "me@h:1", "h?a:1", "h#a:1", "a b:1"),
        *("h: 1", "[fd00::1]", "[fd00::1:7700", "fd00::1]:7700", "[[::1]]:1", "[h]x:1"),
    ],
)
def test_what_is_no_host_and_port_is_refused_by_name(text: str) -> None:
    expected = f"must be host:port, as 10.0.0.2:7700, not '{text}'"
    with pytest.raises(InvalidConfigurationError) as refused:
        peers({PEERS: f"10.0.0.1:1,{text}"})
    assert str(refused.value) == f"{PEERS} {expected}"
    with pytest.raises(InvalidConfigurationError) as refused:
        peer_listen({PEER_LISTEN: text})
    assert str(refused.value) == f"{PEER_LISTEN} {expected}"


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        *(("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True)),
        *(("10.0.0.1", False), ("0.0.0.0", False), ("::", False), ("models.example", False)),
        *(("localhost.example", False), ("fe80::1", False)),
    ],
)
def test_this_machines_own_addresses_are_told(host: str, is_here: bool) -> None:
    assert HostAddress(host, 1).is_here is is_here


def test_on_one_machine_no_keys_are_needed() -> None:
    environment = {PEERS: "127.0.0.1:1,[::1]:2,localhost:3", PEER_LISTEN: "127.0.0.1:4"}
    assert peer_keys(environment) is None


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        (PEERS, "127.0.0.1:1,10.0.0.2:2", "10.0.0.2:2"),
        (PEERS, "[fd00::1]:2", r"\[fd00::1\]:2"),
        (PEER_LISTEN, "0.0.0.0:7700", "0.0.0.0:7700"),
        (PEER_LISTEN, "[::]:7700", r"\[::\]:7700"),
        (PEER_LISTEN, "gpu-1:7700", "gpu-1:7700"),
    ],
)
def test_hosts_do_not_talk_without_keys(name: str, text: str, shown: str) -> None:
    with pytest.raises(
        InvalidConfigurationError, match=f"{name} names {shown}, and {PEER_KEYS} is not set"
    ):
        peer_keys({name: text})
    assert peer_keys({name: text, PEER_KEYS: "/keys/a"}) == Path("/keys/a")


def test_the_folder_of_keys_is_absolute() -> None:
    assert peer_keys({PEER_KEYS: "keys"}) == Path.cwd() / "keys"


def test_prefixes_of_urls_stand_with_commas_between_them() -> None:
    text = "https://models.example/, s3://bucket ,file:///srv/models,http://h:8,file://"
    assert remote_urls({REMOTE_URLS: text}) == (
        *("https://models.example/", "s3://bucket", "file:///srv/models", "http://h:8", "file://"),
    )


@pytest.mark.parametrize(
    "text",
    [
        *("models.example", "ftp://h/", "https:/h", "https:h", "://h", "HTTPS://h", "*"),
        *("https://h/?a", "https://h/#a", "https://me@h/", "https://h\\a", "https://me:p@h"),
    ],
)
def test_what_is_no_beginning_of_a_url_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidConfigurationError) as refused:
        remote_urls({REMOTE_URLS: f"https://models.example/,{text}"})
    assert str(refused.value) == (
        f"{REMOTE_URLS} must be prefixes of URLs with commas between them, as "
        f"https://models.example/ or file:///srv/models, not '{text}'"
    )


def test_what_names_no_url_at_all_does_not_allow_every_one() -> None:
    with pytest.raises(InvalidConfigurationError, match=f"{REMOTE_URLS} must be .*, not ' , '"):
        remote_urls({REMOTE_URLS: " , "})


@pytest.mark.parametrize("text", ["https://[::1", "https://h:x/a", "https://h:99999/"])
def test_a_prefix_that_no_url_begins_with_is_refused_when_it_is_read(text: str) -> None:
    """Else each URL that is compared with it is refused for what is set."""
    with pytest.raises(InvalidConfigurationError, match=REMOTE_URLS):
        remote_urls({REMOTE_URLS: text})
