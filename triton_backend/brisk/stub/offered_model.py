"""A model that the worker has offered to be computed in this process: taken up, and given up."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from brisk.errors import BriskError
from brisk.protocol.records import ComputedInStub, LoadModel
from brisk.stub.runtime_client.worker_connection import Offer

if TYPE_CHECKING:
    from brisk.stub.local_model import LocalModel


class OfferedModel:
    """One model of this process; ``local`` computes it, while an offer of the worker's stands.

    ``take`` may be called from any thread.
    """

    def __init__(
        self,
        model: LoadModel,
        report: Callable[[ComputedInStub], None],
        log: Callable[[str, str], None],
    ) -> None:
        """Begin without an offer. ``report``: sends to the worker what was computed here, from any
        thread."""
        self.local: LocalModel | None = None
        self._model = model
        self._report = report
        self._log = log
        self._offer: Offer | None = None
        """The one that stands: taken up, or just being so."""

    def take(self, offer: Offer | None) -> None:
        """The worker has offered the model; None: no offer stands any more."""
        if offer is None:
            self._offer = None
            local, self.local = self.local, None
            if local is not None:
                local.close()
        elif self._offer is not None:
            os.close(offer.gate)
        else:
            self._offer = offer
            threading.Thread(
                target=self._open, args=(offer,), name="brisk-local-model", daemon=True
            ).start()

    def _open(self, offer: Offer) -> None:
        """Import ONNX Runtime and make a session, in a thread of its own."""
        try:
            from brisk.stub.local_model import LocalModel

            local = LocalModel(self._model, offer.record, offer.gate, self._report)
        except (BriskError, ImportError, OSError) as error:
            self._log("info", f"model '{self._model.name}' stays in the worker: {error}")
            if self._offer is offer:
                self._offer = None
            return
        self.local = local
        if self._offer is not offer:  # it was taken back meanwhile
            self.local = None
            local.close()
