"""``python -m brisk.runtime.artefact_process MODEL``: builds a model's artefact, out of the way.

Every failure is told in one line and is nobody's trouble: the model is served without.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from brisk.runtime.idle_process import step_aside
from brisk.runtime.saying import say


def main() -> int:
    """Exit status: 0 built, or there already; 1 not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    if not step_aside():
        return 1
    return _build(arguments.model, arguments.device, arguments.threads)


def _build(model: Path, device: str, threads: int) -> int:
    import torch

    from brisk.errors import BriskError, UnavailableError
    from brisk.execution.preparation import is_prepared, prepare

    torch.set_num_threads(1)
    try:
        if is_prepared(model, torch.device(device), threads):
            return 0
        made = prepare(model, torch.device(device), threads, is_measured=False)
    except UnavailableError:
        return 0  # another process is at it
    except (BriskError, OSError) as error:
        say(f"no artefact of {model}: {error}")
        return 1
    say(f"made {made.path} in {made.seconds:.1f} s: the next start is from it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
