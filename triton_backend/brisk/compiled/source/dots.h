// A layer of few outputs at one position, as at the end of a classifier: sums over long rows.
//
// By panels such a layer would read zeros for most of a panel's outputs and wait for each of its
// additions. Here an output's weights lie by vectors of inputs, and GROUP outputs are summed at once.
#pragma once
#include <algorithm>
#include <cstdint>

#include "blocks.h"
#include "network.h"

namespace brisk {

constexpr int GROUP = 8;
constexpr int MOST_DOTS = PANEL / 2;  // outputs; more fill a panel well enough

inline bool has_dots(const Step& step) {
  return step.target.height == 1 && step.target.width == 1 && step.target.channels <= MOST_DOTS;
}

// Vectors of inputs that a tap of `run` floats takes; the last one may reach beyond it.
inline int64_t tap_vectors(int run) { return (run + WIDTH - 1) / WIDTH; }

// Weights of a tap: by group, then vector, then output of the group. `weight(output, k)` is of its
// float k; `to` has zeros.
template <class F>
inline void pack_dots(float* to, int outputs, int taps, int tap, int run, F weight) {
  const int64_t vectors = tap_vectors(run);
  for (int output = 0; output < outputs; ++output) {
    const int begin = output / GROUP * GROUP, size = std::min(GROUP, outputs - begin);
    float* group = to + (begin * taps + tap * size) * vectors * WIDTH;
    for (int k = 0; k < run; ++k) {
      group[(k / WIDTH * size + output - begin) * WIDTH + k % WIDTH] = weight(output, k);
    }
  }
}

// Sums of `G` outputs over all taps.
template <int G>
inline void add_dots(const float* weights, const float* source, const int64_t* tap_offsets, int taps,
                     int run, float* sums) {
  Vector totals[G] = {};
  for (int tap = 0; tap < taps; ++tap) {
    const float* from = source + tap_offsets[tap];
    for (int k = 0; k < run; k += WIDTH, weights += G * WIDTH) {
      const Vector value = load_some(from + k, run - k);
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) totals[g] += value * load(weights + g * WIDTH);
    }
  }
  for (int g = 0; g < G; ++g) sums[g] = sum_of(totals[g]);
}

// `sums`: MOST_DOTS floats.
inline void compute_dots(const float* weights, int outputs, const float* source,
                         const int64_t* tap_offsets, int taps, int run, float* sums) {
  for (int begin = 0; begin < outputs; begin += GROUP) {
    float* to = sums + begin;
    switch (std::min(GROUP, outputs - begin)) {
      case 1: add_dots<1>(weights, source, tap_offsets, taps, run, to); break;
      case 2: add_dots<2>(weights, source, tap_offsets, taps, run, to); break;
      case 3: add_dots<3>(weights, source, tap_offsets, taps, run, to); break;
      case 4: add_dots<4>(weights, source, tap_offsets, taps, run, to); break;
      case 5: add_dots<5>(weights, source, tap_offsets, taps, run, to); break;
      case 6: add_dots<6>(weights, source, tap_offsets, taps, run, to); break;
      case 7: add_dots<7>(weights, source, tap_offsets, taps, run, to); break;
      default: add_dots<8>(weights, source, tap_offsets, taps, run, to);
    }
    weights += GROUP * taps * tap_vectors(run) * WIDTH;
  }
}

}  // namespace brisk
