"""How the stub that completes an entry ends: by the server, as soon as that has the answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from brisk.fork_server.build import find_compiler
from support.runtime.compiled import compile_shared
from support.server.entries import doubled, write_entry
from support.server.serve_command import Serving

pytestmark = [pytest.mark.timing, pytest.mark.beside]

LONG_UNLOCKS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

enum { ROBUST = 16, SHARED = 128, HELD_NS = 3000000 };  // glibc's marks, and 3 ms
extern char *program_invocation_name;

static long now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000L + now.tv_nsec;
}

int pthread_mutex_unlock(pthread_mutex_t *mutex) {
  static int (*unlock)(pthread_mutex_t *);
  if (unlock == NULL) unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
  int kind = mutex->__data.__kind;
  if ((kind & ROBUST) && (kind & SHARED) &&
      strstr(program_invocation_name, "triton_python_backend_stub") != NULL) {
    for (long begun = now_ns(); now_ns() - begun < HELD_NS;) {
    }
  }
  return unlock(mutex);
}
"""
"""In a stub: every lock that it shares with the server is held longer."""


def test_a_stub_is_not_ended_while_it_holds_a_lock_that_the_server_needs(
    tmp_path: Path, serve: Serving
) -> None:
    """Else the server would end with ``lock_exception``."""
    if find_compiler() is None:
        pytest.skip("there is no C++ compiler")
    names = [f"model{number}" for number in range(4)]
    for name in names:
        write_entry(tmp_path / "repository", name, doubled())
    library = compile_shared(tmp_path / "long_unlocks.so", LONG_UNLOCKS, "-ldl")
    options = ["--model-control-mode=explicit"]
    environment = {"LD_PRELOAD": str(library)}
    with serve(tmp_path, [tmp_path / "repository"], options, environment) as served:
        for name in names:
            served.load(name)
            assert served.ask(name) == [2.0] * 8
