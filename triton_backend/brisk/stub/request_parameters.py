"""What a request says apart from its inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_CONTEXT_CHARACTERS = 200


def request_parameters(request: Any) -> Mapping[str, Any]:
    """Those that the client has set."""
    text = request.parameters()
    return json.loads(text) if text and text != "{}" else {}


def trace_context(request: Any) -> str:
    """Triton's trace context (OpenTelemetry's propagation headers as JSON); empty without one.

    A Triton before 24.08 has none to give.
    """
    trace = getattr(request, "trace", None)
    context = trace().get_context() if trace is not None else None
    return str(context)[:MAX_CONTEXT_CHARACTERS] if context else ""
