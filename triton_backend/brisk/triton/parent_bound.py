"""A script that becomes the given command, tied to the life of the process that started it.

    python parent_bound.py PARENT COMMAND …

The kernel sends SIGTERM when the thread that started this ends, however it ends. The command leads
its own process group, in its starter's session: a new session would be a scheduling group apart
from the clients on this machine. This is a script since ``preexec_fn`` is unsafe while other
threads run.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() == int(sys.argv[1]):  # else it ended before the call above
        os.execv(sys.argv[2], sys.argv[2:])
