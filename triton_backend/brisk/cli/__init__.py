"""The ``brisk`` command."""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

from brisk.errors import BriskError

_OPTIONAL = {
    "PIL": "brisk-triton[train]",
    "imageio_ffmpeg": "brisk-triton[bench]",
    "matplotlib": "brisk-triton[bench]",
    "openvino": "brisk-triton[bench]",
    "psutil": "brisk-triton[bench]",
    "sklearn": "brisk-triton[samples]",
    "torch": "brisk-triton[train]",
    **dict.fromkeys(("gevent", "geventhttpclient", "grpc"), "tritonclient[http,grpc]"),
}
"""The packages that only some commands need, and what installs each."""

_INTERRUPTED = 130
"""The exit status that a shell shows of a process which Ctrl-C ends."""


def main() -> None:
    """Run the ``brisk`` command.

    An error of Brisk's own, of a server, of a file or of the network is one red line (and its
    details) and exit status 1. Any other error is a fault of Brisk, shown with its traceback.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # what is no UTF-8 text is printed as it is
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        if sys.argv[1:2] == [
            "serve"
        ]:  # without what the others need, for which servers would wait
            from brisk.cli.commands.serve import serve

            serve(sys.argv[2:])
        else:
            from brisk.cli.application import application

            application()
    except BriskError as error:
        _end_with(str(error))
    except KeyboardInterrupt:  # in `serve`; of the others, typer ends
        sys.stdout.flush()
        os._exit(_INTERRUPTED)  # threads may still wait for URLs
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = "" if error.filename is None else f"'{error.filename}': "
        _end_with(f"{where}{error.strerror or error}")
    except Exception as error:
        if (text := _lacking_text(error) or _server_text(error)) is None:
            raise
        _end_with(text)


def _lacking_text(error: Exception) -> str | None:
    """Return which package a command lacks, and what installs it; None if it is another error.

    tritonclient raises RuntimeError from the ModuleNotFoundError.
    """
    missing = error.__cause__ if isinstance(error, RuntimeError) else error
    if not isinstance(missing, ModuleNotFoundError):
        return None
    package = (missing.name or "").partition(".")[0]
    if package not in _OPTIONAL:
        return None
    return (
        f"this needs the package '{package}', which {sys.executable} does not have: "
        f"pip install '{_OPTIONAL[package]}'"
    )


def _server_text(error: Exception) -> str | None:
    """Return the text of a server's answer; None if the error is not a Triton client's."""
    client = sys.modules.get("tritonclient.utils")  # an error of it needs it
    if client is None or not isinstance(error, client.InferenceServerException):
        return None
    return f"the server answers: {error.message() or error}"


def _end_with(text: str) -> NoReturn:
    from brisk.cli.views.error_text import tell_error  # late: most commands end without an error

    tell_error(text)
    sys.exit(1)
