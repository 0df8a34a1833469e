"""The ``brisk`` command."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from brisk.errors import BriskError

_EXTRAS = {
    "PIL": "train",
    "imageio_ffmpeg": "bench",
    "matplotlib": "bench",
    "openvino": "bench",
    "psutil": "bench",
    "sklearn": "samples",
    "torch": "train",
}
"""The packages that only some commands need, and the extra of ``brisk-triton`` that installs
each."""


def main() -> None:
    """Run the ``brisk`` command.

    An error of Brisk's own, of a server, of a file or of the network is one red line (and its
    details) and exit status 1. Any other error is a fault of Brisk, shown with its traceback.
    """
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
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = "" if error.filename is None else f"'{error.filename}': "
        _end_with(f"{where}{error.strerror or error}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        _end_with(
            f"this needs the package '{package}', which {sys.executable} does not have: "
            f"pip install 'brisk-triton[{_EXTRAS[package]}]'"
        )
    except Exception as error:
        if (text := _server_text(error)) is None:
            raise
        _end_with(text)


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
