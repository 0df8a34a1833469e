"""A model that the worker offers to this process to compute: accepting and dropping the offer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from brisk.errors import BriskError
from brisk.protocol.records import ComputedInStub, LoadModel
from brisk.stub.runtime_client.worker_connection import Offer

if TYPE_CHECKING:
    from brisk.stub.local.local_model import LocalModel


class OfferedModel:
    """The worker's current offer of one model; ``local`` computes it while the offer stands.

    Any thread may call ``take``.
    """

    def __init__(
        self,
        model: LoadModel,
        report: Callable[[ComputedInStub], None],
        log: Callable[[str, str], None],
        in_flight: Callable[[], int],
    ) -> None:
        """Begin without an offer. ``report``: sends counts of computed requests to the worker;
        any thread may call it. ``in_flight``: counts the requests that the worker has."""
        self.local: LocalModel | None = None
        self._model = model
        self._report = report
        self._log = log
        self._in_flight = in_flight
        self._lock = threading.Lock()
        self._offer: Offer | None = None
        """The offer that stands, accepted or being accepted; None if there is none."""
        self._row_ns = 0
        """The time of a row in the last offer."""
        self._is_given_up = False
        """Whether a run took too long here: then workers compute the model for good."""

    def take(self, offer: Offer | None) -> None:
        """Accept the worker's offer of the model; of a further one, only its time of a row. None
        withdraws the offer."""
        with self._lock:
            self._take(offer)

    def _take(self, offer: Offer | None) -> None:
        if offer is not None:
            self._row_ns = offer.record.row_ns
        if offer is None:
            self._offer = None
            local, self.local = self.local, None
            if local is not None:
                self._is_given_up |= local.is_given_up
                local.close()
        elif self._offer is not None or self._is_given_up:
            os.close(offer.gate)
            if self.local is not None:
                self.local.expect(self._row_ns)
        else:
            opening = threading.Thread(
                target=self._open, args=(offer,), name="brisk-local-model", daemon=True
            )
            try:
                opening.start()
            except RuntimeError as error:  # the system has no thread left
                os.close(offer.gate)
                self._decline(error)
            else:
                self._offer = offer

    def _decline(self, error: Exception) -> None:
        self._log("info", f"model '{self._model.name}' stays in the worker: {error}")

    def _open(self, offer: Offer) -> None:
        """Import ONNX Runtime and open the offered model. Runs in its own thread."""
        try:
            from brisk.stub.local.local_model import LocalModel

            local = LocalModel(
                self._model, offer.record, offer.gate, self._report, self._in_flight
            )
        except (BriskError, ImportError, OSError, RuntimeError) as error:
            self._decline(error)
            with self._lock:
                if self._offer is offer:
                    self._offer = None
            return
        with self._lock:
            if self._offer is offer:
                local.expect(self._row_ns)
                self.local = local
            else:  # it was taken back meanwhile
                local.close()
