"""The composition root of a worker process: its parts, put together."""

from __future__ import annotations

import socket

import torch

from brisk.execution.device import open_device
from brisk.runtime.settings import Settings
from brisk.runtime.transport import Transport
from brisk.runtime.worker import Worker
from brisk.scheduling.policy import first_come_first_served
from brisk.solutions.catalogue import default_catalogue

default_catalogue()  # at import, so in the supervisor: its modules are shared by all workers


def run_worker(listener: socket.socket, device: str, settings: Settings) -> None:
    """Serve ``listener``'s connections until nobody needs it."""
    torch.set_num_threads(settings.threads)
    worker = Worker(
        Transport(listener), open_device(device), first_come_first_served, settings.idle_exit_s
    )
    with torch.inference_mode():
        while not worker.is_idle:
            worker.step()
