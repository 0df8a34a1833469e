// Products of large matrices, blocked for registers and caches: what convolutions and linear
// layers come down to.
//
// The left matrix has a row for each position and is packed by tile: TILE rows, then WIDTH
// columns of each row side by side (`pack` below). The right one has a column for each output
// channel and is packed by panel: for each row, PANEL columns. One tile times one panel is summed
// up in registers.
#pragma once
#include <algorithm>

#include "arithmetic.h"

namespace brisk {

#if defined(__AVX512F__)
constexpr int TILE = 14;  // 28 sums, two factors and one value in 32 registers
#else
constexpr int TILE = 6;  // 12 sums, two factors and one value in 16 registers
#endif
constexpr int PANEL = 2 * WIDTH;  // output channels of one panel of weights

inline int64_t divided_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Rows that a tile of `count` positions is packed with: one of those `multiply` knows.
inline int packed_rows(int count) {
  for (int rows : {1, 2, 4, 7}) {
    if (count <= rows && rows <= TILE) return rows;
  }
  return TILE;
}

// What to fetch while products are computed, by lines for each row of the panel.
struct Ahead {
  const float* from;
  int64_t step;
};

// Of `tiles` that a panel of `floats` is multiplied by, one after the other: the first one fetches
// the panel itself, a little ahead of its use, the others a share each of the panel behind it.
inline Ahead ahead(const float* panel, int64_t floats, int64_t tile, int64_t tiles) {
  constexpr int64_t ROWS_AHEAD = 64;
  if (tile == 0) return {panel + ROWS_AHEAD * PANEL, PANEL};
  return {panel + floats + floats / (tiles - 1) * (tile - 1), PANEL / (tiles - 1)};
}

// `blocks` times WIDTH products of R rows and V vectors of columns, to out[r * stride], on top of
// what is there where `adds`.
template <int R, int V>
__attribute__((noinline)) void multiply(const float* left, const float* right, int64_t blocks,
                                        float* out, int64_t stride, bool adds, Ahead next) {
  Vector sums[V][R] = {};
  if (adds) {
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) sums[v][r] = load(out + r * stride + v * WIDTH);
    }
  }
  for (int64_t block = 0; block < blocks; ++block) {
#pragma GCC unroll 2
    for (int k = 0; k < WIDTH; ++k) {
      Vector factors[V];
      for (int v = 0; v < V; ++v) factors[v] = load(right + v * WIDTH);
      __builtin_prefetch(next.from, 0, 2);
      __builtin_prefetch(next.from + WIDTH, 0, 2);
      next.from += next.step;
      right += PANEL;
#pragma GCC unroll 14
      for (int r = 0; r < R; ++r) {
        const Vector value = all(left[r * WIDTH + k]);
        for (int v = 0; v < V; ++v) sums[v][r] += value * factors[v];
      }
    }
    left += R * WIDTH;
  }
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(out + r * stride + v * WIDTH, sums[v][r]);
  }
}

template <int V>
inline void multiply_rows(int rows, const float* left, const float* right, int64_t blocks,
                          float* out, int64_t stride, bool adds, Ahead next) {
  switch (rows) {
    case 1: return multiply<1, V>(left, right, blocks, out, stride, adds, next);
    case 2: return multiply<2, V>(left, right, blocks, out, stride, adds, next);
    case 4: return multiply<4, V>(left, right, blocks, out, stride, adds, next);
#if defined(__AVX512F__)
    case 7: return multiply<7, V>(left, right, blocks, out, stride, adds, next);
#endif
    default: return multiply<TILE, V>(left, right, blocks, out, stride, adds, next);
  }
}

// A packed tile times a panel; `columns` of the panel are wanted, but whole vectors are written.
inline void multiply_tile(int rows, int columns, const float* left, const float* right,
                          int64_t blocks, float* out, int64_t stride, bool adds, Ahead next) {
  if (columns > WIDTH) {
    multiply_rows<2>(rows, left, right, blocks, out, stride, adds, next);
  } else {
    multiply_rows<1>(rows, left, right, blocks, out, stride, adds, next);
  }
}

}  // namespace brisk
