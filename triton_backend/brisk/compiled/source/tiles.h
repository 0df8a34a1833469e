// The inner product of all: ROWS output positions times two vectors of output channels, held in
// registers. A convolution is a sum over taps; a matrix product is one with a single tap.
#pragma once
#include <algorithm>

#include "blocks.h"
#include "dots.h"

namespace brisk {

// A convolution made ready: weights by panel, then tap, then input channel, then output channel
// of the panel (zeros beyond the last one). The columns of a row of taps that lie side by side in
// memory are one tap of `run` floats.
struct Convolution {
  const Step* step;
  int taps, run;                 // run: floats that a tap reads of each position
  const int64_t* tap_offsets;    // from a position's first float
  const float* weights;
  const float* bias;             // padded to whole panels
  int channels;
  bool are_dots;                 // weights are those of `compute_dots`
};

// For `R` positions and `V` vectors: sources[r] is a position's first float; results to targets.
template <int R, int V>
inline void compute_tile(const Convolution& work, int first_channel, const float* const* sources,
                         float* const* targets, const float* const* seconds) {
  Vector sums[V][R];
  for (int v = 0; v < V; ++v) {
    const Vector bias = load(work.bias + first_channel + v * WIDTH);
    for (int r = 0; r < R; ++r) sums[v][r] = bias;
  }
  const float* weights = work.weights + static_cast<int64_t>(first_channel) * work.taps * work.run;
  for (int tap = 0; tap < work.taps; ++tap) {
    const float* rows[R];
    for (int r = 0; r < R; ++r) rows[r] = sources[r] + work.tap_offsets[tap];
    for (int k = 0; k < work.run; ++k, weights += PANEL) {
      Vector factors[V];
      for (int v = 0; v < V; ++v) factors[v] = load(weights + v * WIDTH);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vector value = all(rows[r][k]);
        for (int v = 0; v < V; ++v) sums[v][r] += value * factors[v];
      }
    }
  }
  for (int v = 0; v < V; ++v) {
    const int channel = first_channel + v * WIDTH;
    const int count = work.channels - channel;
    if (count <= 0) return;
    for (int r = 0; r < R; ++r) {
      Vector value = sums[v][r];
      if (seconds) value += load_some(seconds[r] + channel, count);
      store_some(targets[r] + channel, activate(value, *work.step), count);
    }
  }
}

template <int R>
inline void compute_rows(const Convolution& work, int first_channel, const float* const* sources,
                         float* const* targets, const float* const* seconds) {
  if (work.channels - first_channel > WIDTH) {
    compute_tile<R, 2>(work, first_channel, sources, targets, seconds);
  } else {
    compute_tile<R, 1>(work, first_channel, sources, targets, seconds);
  }
}

// One position of few outputs.
inline void compute_position(const Convolution& work, const float* source, float* target,
                             const float* second) {
  float sums[MOST_DOTS];
  compute_dots(work.weights, work.channels, source, work.tap_offsets, work.taps, work.run, sums);
  for (int channel = 0; channel < work.channels; channel += WIDTH) {
    const int count = work.channels - channel;
    Vector value = load_some(sums + channel, count) + load(work.bias + channel);
    if (second) value += load_some(second + channel, count);
    store_some(target + channel, activate(value, *work.step), count);
  }
}

// `count` positions, ROWS at a time.
inline void compute_positions(const Convolution& work, int first_channel, int count,
                              const float* const* sources, float* const* targets,
                              const float* const* seconds) {
  if (work.are_dots) {
    for (int i = 0; i < count; ++i) {
      compute_position(work, sources[i], targets[i], seconds ? seconds[i] : nullptr);
    }
    return;
  }
  for (int done = 0; done < count; done += ROWS) {
    const float* const* from = sources + done;
    float* const* to = targets + done;
    const float* const* with = seconds ? seconds + done : nullptr;
    switch (std::min(count - done, ROWS)) {
      case 1: compute_rows<1>(work, first_channel, from, to, with); break;
      case 2: compute_rows<2>(work, first_channel, from, to, with); break;
      case 3: compute_rows<3>(work, first_channel, from, to, with); break;
      case 4: compute_rows<4>(work, first_channel, from, to, with); break;
      case 5: compute_rows<5>(work, first_channel, from, to, with); break;
      case 6: compute_rows<6>(work, first_channel, from, to, with); break;
      case 7: compute_rows<7>(work, first_channel, from, to, with); break;
      default: compute_rows<ROWS>(work, first_channel, from, to, with); break;
    }
  }
}

}  // namespace brisk
