"""Command lines of tritonserver, read and completed."""

import contextlib
import socket

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.triton.options import (
    Endpoints,
    check_ports,
    endpoints,
    holding_free_ports,
    on_loopback,
    option,
    with_default,
)


@pytest.mark.parametrize(
    "options",
    [["--http-port=9000"], ["--http-port", "9000"], ["--http-port=1", "--http-port=9000"]],
)
def test_an_option_is_read_in_both_spellings_and_the_last_one_counts(options: list[str]) -> None:
    assert option(options, "http-port") == "9000"


def test_an_option_that_is_not_given_is_none() -> None:
    assert option(["--http-port-other=1"], "http-port") is None


def test_a_flag_followed_by_another_option_has_an_empty_value() -> None:
    assert option(["--allow-http", "--grpc-port=1"], "allow-http") == ""


def test_a_default_yields_to_what_the_caller_gave() -> None:
    assert with_default(["--a=1"], "a", "2") == ("--a=1",)
    assert with_default(["--b=1"], "a", "2") == ("--b=1", "--a=2")


def test_services_listen_on_the_loopback_address_unless_told_otherwise() -> None:
    assert on_loopback(["--http-address=0.0.0.0"]) == (
        "--http-address=0.0.0.0",
        "--grpc-address=127.0.0.1",
    )


def test_free_ports_are_distinct_and_given_ones_are_kept() -> None:
    with holding_free_ports(["--grpc-port", "7777"]) as options:
        chosen = {option(options, f"{service}-port") for service in ("http", "grpc", "metrics")}
    assert len(chosen) == 3
    assert "7777" in chosen


def bind(port: int, *, reuse: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    try:
        bound.bind(("127.0.0.1", port))
    except OSError:
        bound.close()
        raise
    return bound


def test_a_free_port_is_for_the_server_alone_until_it_is_let_go() -> None:
    with holding_free_ports([]) as options:
        port = int(option(options, "http-port") or 0)
        with pytest.raises(OSError, match="in use"):
            bind(port, reuse=0)
        with bind(port, reuse=1) as as_the_server_does:
            as_the_server_does.listen()
    bind(port, reuse=0).close()


def test_a_default_port_that_is_taken_is_replaced_by_a_free_one() -> None:
    with socket.socket() as occupant:
        occupant.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else holds it, which serves as well
            occupant.bind(("127.0.0.1", 8000))
            occupant.listen()
        with holding_free_ports([], prefer_default=True) as options:
            assert option(options, "http-port") != "8000"


def test_endpoints_name_the_host_a_local_client_can_reach() -> None:
    options = ["--http-address=0.0.0.0", "--http-port=1", "--grpc-port=2", "--allow-metrics=false"]
    assert endpoints(options) == Endpoints(http="127.0.0.1:1", grpc="127.0.0.1:2", metrics=None)


def test_metrics_follow_the_http_address_as_in_tritonserver() -> None:
    assert endpoints(["--http-address=127.0.0.2"]).metrics == "127.0.0.2:8002"


def test_a_port_that_another_process_listens_on_is_refused_by_name() -> None:
    with holding_free_ports([]) as options:
        check_ports(on_loopback(options))  # ports that are held for the server count as free
        grpc = int(option(options, "grpc-port") or 0)
        with bind(grpc, reuse=1) as occupant:
            occupant.listen()
            reason = "Address already in use; choose another port with --grpc-port"
            for address in ("127.0.0.1", "0.0.0.0"):
                with pytest.raises(InvalidConfigurationError, match=rf"^grpc .*:{grpc}: {reason}"):
                    check_ports([*options, f"--grpc-address={address}"])
            check_ports([*on_loopback(options), "--reuse-grpc-port=true"])
            check_ports([*on_loopback(options), "--allow-grpc=false"])


def test_two_services_with_one_port_are_refused() -> None:
    with holding_free_ports([]) as options:
        http = option(options, "http-port")
        with pytest.raises(InvalidConfigurationError, match=f"metrics .*:{http}: .* port of http"):
            check_ports([*on_loopback(options), f"--metrics-port={http}"])


@pytest.mark.parametrize(
    "options", [["--http-port=99999"], ["--http-port=x"], ["--http-address=no.such.invalid"]]
)
def test_ports_and_addresses_that_are_none_are_left_to_triton(options: list[str]) -> None:
    with holding_free_ports(options) as completed:
        check_ports(on_loopback(completed))
