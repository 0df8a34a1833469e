"""Programs that benchmarks run beside them: told, heard, and ended with what they said."""

from __future__ import annotations

import itertools
import socket
import sys
import threading
import time

import pytest

from brisk.errors import UnavailableError
from brisk_bench.harness.programs import JsonProgram
from brisk_bench.throughput.load import HTTP, Load, Target, clients

PATIENCE_S = 60.0

DOUBLES = """
import sys
from brisk_bench.harness.programs import answer_each
print("a library says something")
def double(number):
    if number > 100:
        raise ValueError(f"{number} is too many")
    return {"doubled": 2 * number}
answer_each(double, (ValueError,))
"""


def program(script: str) -> JsonProgram:
    return JsonProgram("the doubler", [sys.executable, "-c", script])


def test_a_program_answers_each_task_and_other_lines_are_passed_over() -> None:
    with program(DOUBLES) as doubler:
        for number in (1, 21):
            doubler.say(number=number)
            assert doubler.hear(PATIENCE_S) == {"doubled": 2 * number}
        with pytest.raises(TimeoutError, match=r"the doubler does not answer within 0\.1 s"):
            doubler.hear(0.1)
    assert doubler.process.returncode is not None


def test_a_program_that_fails_is_told_in_its_own_words() -> None:
    with program(DOUBLES) as doubler:
        doubler.say(number=101)
        with pytest.raises(UnavailableError, match="the doubler ended with 1: 101 is too many"):
            doubler.hear(PATIENCE_S)
        with pytest.raises(UnavailableError, match="the doubler ended with 1"):
            doubler.say(number=1)


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
REFUSAL = b"HTTP/1.1 503 Busy\r\nInference-Header-Content-Length: 6\r\nContent-Length: 12\r\n\r\n"


def answer_http(server: socket.socket, refused: int = 0) -> None:
    """One empty answer for each request of 4 bytes, to any number of clients; each client's first
    ``refused`` are refused, the head before both parts of the body."""

    def serve(connection: socket.socket) -> None:
        with connection:
            for number in itertools.count():
                if not connection.recv(4):
                    return
                connection.sendall(REFUSAL if number < refused else ANSWER)
                for part in (b"all to", b"o busy") if number < refused else ():
                    time.sleep(0.1)
                    connection.sendall(part)

    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def test_clients_of_a_load_ask_and_tell_how_long_each_answer_took() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, clients(2) as crowd:
        threading.Thread(target=answer_http, args=(server,), daemon=True).start()
        crowd.give({"HTTP model": b"ask!"})
        target = Target(HTTP, f"127.0.0.1:{server.getsockname()[1]}", ["HTTP model"])
        moments: list[float] = []
        load = Load(target, seconds=0.2, warm_up_s=0.0, pace_s=0.01)
        found = crowd.measure(load, 2, lambda begin_s, end_s: moments.extend((begin_s, end_s)))
        server.shutdown(socket.SHUT_RDWR)
    assert found.errors == []
    assert 30 <= len(found.latency_s) <= 42  # of each client 20 intervals, which have 21 ends
    assert moments[1] - moments[0] == pytest.approx(0.2)


def test_a_client_that_was_refused_reads_the_refusal_and_goes_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, clients(1) as crowd:
        threading.Thread(target=answer_http, args=(server, 2), daemon=True).start()
        crowd.give({"HTTP model": b"ask!"})
        target = Target(HTTP, f"127.0.0.1:{server.getsockname()[1]}", ["HTTP model"])
        found = crowd.measure(Load(target, seconds=0.6, warm_up_s=0.0, pace_s=0.01), 1)
        server.shutdown(socket.SHUT_RDWR)
    assert len(found.errors) == 2
    assert all("503 Busy" in error for error in found.errors)
    assert len(found.latency_s) >= 20
