// Memory that layers use while they run, kept for the next one.
#pragma once
#include <cstdlib>
#include <new>

namespace brisk {

// Piece `number` (0 to 3), of at least `floats` floats with a vector's room behind them. For
// whoever holds the team; contents last until the next call for the same piece.
inline float* workspace(int number, int64_t floats) {
  static float* pieces[4];
  static int64_t sizes[4];
  if (sizes[number] < floats) {
    std::free(pieces[number]);
    sizes[number] = 0;
    const int64_t bytes = ((floats + 16) * 4 + 4095) / 4096 * 4096;
    pieces[number] = static_cast<float*>(std::aligned_alloc(4096, bytes));
    if (!pieces[number]) throw std::bad_alloc();
    sizes[number] = floats;
  }
  return pieces[number];
}

}  // namespace brisk
