"""Exact integer arithmetic for quantised operators: products, rounding and saturation.

With ``A = A' + s`` for the signed bytes ``A'`` (s is 128 for unsigned ones, 0 for signed ones) and
``a = zero point - s``, and the same for B,
``(A' - a)(B' - b) = A'B' - a colsum(B') - b (rowsum(A') - K a)``: one product of signed bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255)}

BYTES = frozenset({"int8", "uint8"})


def signed(values: torch.Tensor) -> torch.Tensor:
    """Bytes as signed ones: unsigned ones less 128, by flipping their top bit."""
    return values if values.dtype == torch.int8 else (values ^ 128).view(torch.int8)


def saturate(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round half to even and saturate to ``dtype``; overwrites ``values``."""
    return values.round_().clamp_(*RANGES[dtype]).to(dtype)


@dataclass(frozen=True, slots=True)
class ByteMatrix:
    """A constant right operand. ``values``: int8 (rows, columns); the rest int32.

    ``offset``: what to subtract, () or (columns,), None for nothing; ``sums``: (columns,).
    """

    values: torch.Tensor
    sums: torch.Tensor
    offset: torch.Tensor | None

    @classmethod
    def make(
        cls, matrix: np.ndarray, zero_point: np.ndarray | None, device: torch.device
    ) -> ByteMatrix:
        """Of an int8 or uint8 matrix; ``zero_point``: (), (1,) or (columns,), None for zero."""
        shift = 0 if matrix.dtype == np.int8 else 128
        plain = (matrix.astype(np.int32) - shift).astype(np.int8)
        point = np.int32(0) if zero_point is None else zero_point.astype(np.int32)
        offset = np.asarray(point - shift, np.int32)
        return cls(
            torch.from_numpy(np.ascontiguousarray(plain)).to(device),
            torch.from_numpy(plain.sum(0, dtype=np.int32)).to(device),
            torch.from_numpy(offset).to(device) if offset.any() else None,
        )

    def product(self, left: torch.Tensor, zero_point: torch.Tensor | None) -> torch.Tensor:
        """``(left - zero_point) @ (matrix - its zero point)``, int32, any rank from 2 on.

        ``left``: bytes (…, rows); ``zero_point``: one byte of the same dtype.
        """
        flat = signed(left.reshape(-1, left.shape[-1]))
        shift = 0 if left.dtype == torch.int8 else 128
        result = _multiply(flat, self.values)
        offset: torch.Tensor | int = -shift
        if zero_point is not None:
            offset = zero_point.reshape(()).to(torch.int32) - shift
        if zero_point is not None or shift:
            result.sub_(self.sums * offset)
        if self.offset is not None:
            rows = flat.sum(1, keepdim=True, dtype=torch.int32) - offset * flat.shape[1]
            result.sub_(rows * self.offset)
        return result.view(*left.shape[:-1], result.shape[-1])


def _multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if left.device.type == "cpu" and left.shape[0]:
        return torch._int_mm(left, right)
    return torch.mm(left.double(), right.double()).to(torch.int32)
