// What crosses the C interface: a network as a table of steps over tensors. Mirrored, field by
// field, by brisk/compiled/table.py.
#pragma once
#include <cstdint>

namespace brisk {

enum Place : int32_t { SCRATCH = 0, INPUT = 1, OUTPUT = 2 };

enum Kind : int32_t {
  COPY = 0,
  CONVOLUTION = 1,
  DEPTHWISE = 2,
  MAXIMUM_POOL = 3,
  AVERAGE_POOL = 4,
  POINTWISE = 5,
  SOFTMAX = 6,
  ARGUMENT_MAXIMUM = 7,
  ADAPTIVE_POOL = 8,
  GATE = 9,
  LAYER = 10,
};

enum Activation : int32_t {
  NONE = 0,
  RELU = 1,
  CLIP = 2,
  SIGMOID = 3,
  TANH = 4,
  SILU = 5,
  HARD_SWISH = 6,
  LEAKY_RELU = 7,
  GELU = 8,
  HARD_SIGMOID = 9,  // of slope 1/6
};

// One image's height x width x channels floats; strides in floats. `offset` leads to the first
// one: within the scratch memory, or within input or output number `index` of the call.
struct Tensor {
  int32_t place, index;
  int64_t offset, image, row, column, channel;
  int32_t height, width, channels, padding;
};

// `source` (and `second`, where `has_second`) to `target`, for every image of the batch.
// CONVOLUTION reads `before` rows and columns ahead of the source's first, which its memory must have,
// as zeros. DEPTHWISE and pools take only what lies within the source; ADAPTIVE_POOL averages
// windows that divide the source among the target's positions, as torch does.
// POINTWISE: target = activation(source * scale + shift [+ second]). GATE: target = activation(source *
// second), whose one position holds for all of the image. LAYER: a layer of this `unit` (layer.h), of
// images that lie side by side without borders, its weights and bias those of such a layer.
struct Step {
  int32_t kind, activation, has_second, counts_padding;
  float alpha, beta, scale, shift;
  Tensor source, second, target;
  int32_t kernel[2], stride[2], dilation[2], before[2];
  const float* weights;  // (out, in, height, width), DEPTHWISE: (channels, 1, height, width)
  const float* bias;     // (out,) or null
  int32_t unit, padding;
};

}  // namespace brisk
