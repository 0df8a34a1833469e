// One large layer: a convolution, or a product with a constant matrix, with what follows it fused.
// Mirrored, field by field, by brisk/compiled/layer.py.
#pragma once
#include <cstdint>

namespace brisk {

constexpr int32_t BY_CHANNEL = -1;

// `unit` 0: direct; BY_CHANNEL: depthwise; else the output positions a side of a Winograd tile (2
// or 4).
// `weights`: by panel of PANEL outputs, then input, then output of the panel; zeros fill the last
// panel, and the inputs up to whole blocks of WIDTH. Inputs count taps first: (row, column,
// channel). Winograd: such panels for each of (unit + 2)^2 places, one after the other. Depthwise:
// by tap, then channel, filled up to whole vectors with zeros, which are a further tap.
// `bias`: of whole panels.
struct Layer {
  int32_t unit, activation, channels, outputs;
  float alpha, beta;
  int32_t kernel[2], stride[2], dilation[2], before[2];
  const float* weights;
  const float* bias;
};

// Floats of its weights; not of a depthwise one's.
inline int64_t layer_floats(const Layer& layer, int panel, int width) {
  const int places = layer.unit ? (layer.unit + 2) * (layer.unit + 2) : 1;
  const int taps = layer.unit ? 1 : layer.kernel[0] * layer.kernel[1];
  const int64_t inputs = (int64_t{taps} * layer.channels + width - 1) / width * width;
  return places * ((layer.outputs + panel - 1) / panel) * inputs * panel;
}

// Channels-last: images x height x width x channels floats. The second operand, if any, has the
// shape of the result and is added ahead of the activation.
struct Call {
  int32_t images, height, width, out_height, out_width, padding;
  const float* source;
  const float* second;
  float* target;
};

}  // namespace brisk
