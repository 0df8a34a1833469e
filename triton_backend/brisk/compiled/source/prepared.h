// Steps with their weights laid out as the kernels read them.
#pragma once
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "layer.h"
#include "tiles.h"

namespace brisk {

struct Deleter {
  void operator()(float* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<float[], Deleter>;

inline Memory zeros(int64_t floats) {
  const int64_t bytes = (floats * 4 + 4 * WIDTH + 63) / 64 * 64;  // a vector may be read past it
  float* memory = static_cast<float*>(std::aligned_alloc(64, bytes));
  if (!memory) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return Memory(memory);
}

// A step with what its kernel reads; the weights are somebody else's memory.
struct Prepared {
  Step step;
  Convolution convolution;
  Layer layer;
  const float *weights = nullptr, *bias = nullptr;
  std::vector<int64_t> tap_offsets;
};

inline int64_t whole_lines(int64_t floats) { return (floats + 15) / 16 * 16; }

inline int panels_of(const Step& step) { return (step.target.channels + PANEL - 1) / PANEL; }

// Whether a row of taps is read as one: its positions lie side by side.
inline bool is_joined(const Step& step) {
  return step.dilation[1] == 1 && step.source.column == step.source.channels;
}

inline int taps_of(const Step& step) { return step.kernel[0] * (is_joined(step) ? 1 : step.kernel[1]); }

// Floats of a tap.
inline int run_of(const Step& step) {
  return is_joined(step) ? step.kernel[1] * step.source.channels : step.source.channels;
}

inline int padded_channels(const Step& step) {
  return (step.target.channels + WIDTH - 1) / WIDTH * WIDTH;
}

// Without its weights.
inline Layer layer_of(const Step& step) {
  Layer layer{step.unit, step.activation, step.source.channels, step.target.channels,
              step.alpha, step.beta, {}, {}, {}, {}, nullptr, nullptr};
  for (int axis = 0; axis < 2; ++axis) {
    layer.kernel[axis] = step.kernel[axis];
    layer.stride[axis] = step.stride[axis];
    layer.dilation[axis] = step.dilation[axis];
    layer.before[axis] = step.before[axis];
  }
  return layer;
}

// Floats of a step's weights as its kernel reads them; 0 where it has none.
inline int64_t weight_floats(const Step& step) {
  const int size = step.kernel[0] * step.kernel[1];
  if (step.kind == DEPTHWISE) return whole_lines(int64_t{size + 1} * padded_channels(step));
  if (step.kind == LAYER) return whole_lines(layer_floats(layer_of(step), PANEL, WIDTH));
  if (step.kind != CONVOLUTION) return 0;
  if (has_dots(step)) {
    return whole_lines(step.target.channels * taps_of(step) * tap_vectors(run_of(step)) * WIDTH);
  }
  return whole_lines(int64_t{panels_of(step)} * PANEL * size * step.source.channels);
}

inline int64_t bias_floats(const Step& step) {
  if (step.kind == DEPTHWISE) return whole_lines(padded_channels(step));
  const bool has_panels = step.kind == CONVOLUTION || step.kind == LAYER;
  return has_panels ? whole_lines(panels_of(step) * PANEL) : 0;
}

// Of weights, and behind them the bias; with room for a vector that is read past them.
inline int64_t packed_floats(const Step& step) {
  const int64_t floats = weight_floats(step) + bias_floats(step);
  return floats ? floats + whole_lines(WIDTH) : 0;
}

// Weights by panel, then tap, then input channel, then output channel of the panel.
inline void pack_panels(const Step& step, float* to) {
  const int inputs = step.source.channels, outputs = step.target.channels;
  const int size = step.kernel[0] * step.kernel[1];
  for (int first = 0; first < outputs; first += PANEL) {
    for (int tap = 0; tap < size; ++tap) {
      for (int in = 0; in < inputs; ++in, to += PANEL) {
        const int count = std::min(PANEL, outputs - first);
        for (int out = 0; out < count; ++out) {
          const int64_t from = static_cast<int64_t>(first + out) * inputs + in;
          to[out] = step.weights[from * size + tap];
        }
      }
    }
  }
}

inline void pack_rows_of_dots(const Step& step, float* to) {
  const int inputs = step.source.channels, width = step.kernel[1];
  const int size = step.kernel[0] * width, taps = taps_of(step), run = run_of(step);
  for (int tap = 0; tap < taps; ++tap) {
    pack_dots(to, step.target.channels, taps, tap, run, [&](int output, int k) {
      const int64_t in = static_cast<int64_t>(output) * inputs + k % inputs;
      return step.weights[in * size + (is_joined(step) ? tap * width + k / inputs : tap)];
    });
  }
}

// By tap, then channel.
inline void pack_channels(const Step& step, float* to) {
  const int taps = step.kernel[0] * step.kernel[1], padded = padded_channels(step);
  for (int c = 0; c < step.target.channels; ++c) {
    for (int tap = 0; tap < taps; ++tap) to[tap * padded + c] = step.weights[c * taps + tap];
  }
}

// `to` has `packed_floats` zeros.
inline void pack(const Step& step, float* to) {
  if (step.kind == DEPTHWISE) {
    pack_channels(step, to);
  } else if (step.kind == CONVOLUTION) {
    has_dots(step) ? pack_rows_of_dots(step, to) : pack_panels(step, to);
  } else if (step.kind == LAYER) {
    std::memcpy(to, step.weights, sizeof(float) * layer_floats(layer_of(step), PANEL, WIDTH));
  } else {
    return;
  }
  float* bias = to + weight_floats(step);
  if (step.bias) std::memcpy(bias, step.bias, sizeof(float) * step.target.channels);
}

// `weights` and `bias` as `pack` lays them out. `made` stays where it is.
inline void prepare(Prepared& made, const float* weights, const float* bias) {
  const Step& step = made.step;
  made.weights = weights;
  made.bias = bias;
  if (step.kind == LAYER) {
    made.layer = layer_of(step);
    made.layer.weights = weights;
    made.layer.bias = bias;
  }
  if (step.kind != CONVOLUTION) return;
  for (int y = 0; y < step.kernel[0]; ++y) {
    for (int x = 0; x < (is_joined(step) ? 1 : step.kernel[1]); ++x) {
      made.tap_offsets.push_back(y * step.dilation[0] * step.source.row +
                                 x * step.dilation[1] * step.source.column);
    }
  }
  made.convolution = {&made.step, taps_of(step), run_of(step), made.tap_offsets.data(), made.weights,
                      made.bias, step.target.channels, has_dots(step)};
}

}  // namespace brisk
