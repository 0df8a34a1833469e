// Steps with their weights laid out as the kernels read them.
#pragma once
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

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

struct Prepared {
  Step step;
  Convolution convolution;
  Memory weights, bias;
  std::vector<int64_t> tap_offsets;
};

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

inline void prepare_convolution(Prepared& made) {
  const Step& step = made.step;
  const int inputs = step.source.channels, outputs = step.target.channels;
  const int height = step.kernel[0], width = step.kernel[1];
  const int panels = (outputs + PANEL - 1) / PANEL, size = height * width;
  const bool is_joined = step.dilation[1] == 1 && step.source.column == inputs;
  const bool are_dots = has_dots(step);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < (is_joined ? 1 : width); ++x) {
      made.tap_offsets.push_back(y * step.dilation[0] * step.source.row +
                                 x * step.dilation[1] * step.source.column);
    }
  }
  const int taps = static_cast<int>(made.tap_offsets.size());
  const int run = is_joined ? width * inputs : inputs;
  if (are_dots) {
    made.weights = zeros(outputs * taps * tap_vectors(run) * WIDTH);
    for (int tap = 0; tap < taps; ++tap) {
      pack_dots(made.weights.get(), outputs, taps, tap, run, [&](int output, int k) {
        const int64_t in = static_cast<int64_t>(output) * inputs + k % inputs;
        return step.weights[in * size + (is_joined ? tap * width + k / inputs : tap)];
      });
    }
  } else {
    made.weights = zeros(static_cast<int64_t>(panels) * PANEL * size * inputs);
    pack_panels(step, made.weights.get());
  }
  made.bias = zeros(panels * PANEL);
  if (step.bias) std::memcpy(made.bias.get(), step.bias, sizeof(float) * outputs);
  made.convolution = {&made.step, taps, run, made.tap_offsets.data(), made.weights.get(),
                      made.bias.get(), outputs, are_dots};
}

inline void prepare_depthwise(Prepared& made) {
  const Step& step = made.step;
  const int channels = step.target.channels, taps = step.kernel[0] * step.kernel[1];
  const int padded = (channels + WIDTH - 1) / WIDTH * WIDTH;
  made.weights = zeros(static_cast<int64_t>(taps + 1) * padded);
  made.bias = zeros(padded);
  for (int c = 0; c < channels; ++c) {
    for (int tap = 0; tap < taps; ++tap) {
      made.weights[tap * padded + c] = step.weights[c * taps + tap];
    }
  }
  if (step.bias) std::memcpy(made.bias.get(), step.bias, sizeof(float) * channels);
}

}  // namespace brisk
