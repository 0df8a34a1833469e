// The steps that are no convolutions. Each computes one image.
#pragma once
#include "arithmetic.h"

namespace brisk {

inline float* at(const Tensor& tensor, float* image, int row, int column) {
  return image + row * tensor.row + column * tensor.column;
}

inline void copy(const Step& step, const float* source, float* target) {
  const Tensor &from = step.source, &to = step.target;
  for (int row = 0; row < from.height; ++row) {
    for (int column = 0; column < from.width; ++column) {
      const float* in = source + row * from.row + column * from.column;
      float* out = at(to, target, row, column);
      for (int c = 0; c < from.channels; ++c) out[c * to.channel] = in[c * from.channel];
    }
  }
}

// Calls f(from, second, to, count of channels) for every vector of every position.
template <class F>
inline void for_vectors(const Step& step, const float* source, const float* second, float* target,
                        F f) {
  const Tensor &from = step.source, &to = step.target, &with = step.second;
  for (int row = 0; row < to.height; ++row) {
    for (int column = 0; column < to.width; ++column) {
      const float* in = source + row * from.row + column * from.column;
      const float* other = second ? second + row * with.row + column * with.column : nullptr;
      float* out = at(to, target, row, column);
      for (int c = 0; c < to.channels; c += WIDTH) {
        f(in + c, other ? other + c : nullptr, out + c, to.channels - c);
      }
    }
  }
}

inline void pointwise(const Step& step, const float* source, const float* second, float* target) {
  for_vectors(step, source, second, target,
              [&](const float* in, const float* other, float* out, int count) {
                Vector value = load_some(in, count);
                if (step.scale != 1.0f) value *= step.scale;
                if (step.shift != 0.0f) value += step.shift;
                if (other) value += load_some(other, count);
                store_some(out, activate(value, step), count);
              });
}

// Calls f(row of the source, column of the source, tap) for the taps of a position that lie
// within the source; how many they are.
template <class F>
inline int for_taps(const Step& step, int row, int column, F f) {
  int found = 0;
  for (int y = 0; y < step.kernel[0]; ++y) {
    const int from_row = row * step.stride[0] - step.before[0] + y * step.dilation[0];
    if (from_row < 0 || from_row >= step.source.height) continue;
    for (int x = 0; x < step.kernel[1]; ++x) {
      const int from_column = column * step.stride[1] - step.before[1] + x * step.dilation[1];
      if (from_column < 0 || from_column >= step.source.width) continue;
      f(from_row, from_column, y * step.kernel[1] + x);
      ++found;
    }
  }
  return found;
}

// NaN wins, as in torch.
inline Vector greater(Vector a, Vector b) { return (b > a) | (b != b) ? b : a; }

inline void pool(const Step& step, const float* source, float* target) {
  const Tensor &from = step.source, &to = step.target;
  const bool is_maximum = step.kind == MAXIMUM_POOL;
  const int taps = step.kernel[0] * step.kernel[1];
  for (int row = 0; row < to.height; ++row) {
    for (int column = 0; column < to.width; ++column) {
      float* out = at(to, target, row, column);
      for (int c = 0; c < to.channels; c += WIDTH) {
        const int count = to.channels - c;
        Vector value = all(is_maximum ? -INFINITY : 0.0f);
        const int found = for_taps(step, row, column, [&](int y, int x, int) {
          const Vector next = load_some(source + y * from.row + x * from.column + c, count);
          value = is_maximum ? greater(value, next) : value + next;
        });
        if (!is_maximum) value /= static_cast<float>(step.counts_padding ? taps : found);
        store_some(out + c, activate(value, step), count);
      }
    }
  }
}

// Position i of n averages what lies from i / n to (i + 1) / n of the source, rounded outwards.
inline void adaptive_pool(const Step& step, const float* source, float* target) {
  const Tensor &from = step.source, &to = step.target;
  for (int row = 0; row < to.height; ++row) {
    const int top = row * from.height / to.height;
    const int bottom = ((row + 1) * from.height + to.height - 1) / to.height;
    for (int column = 0; column < to.width; ++column) {
      const int left = column * from.width / to.width;
      const int right = ((column + 1) * from.width + to.width - 1) / to.width;
      const float share = 1.0f / static_cast<float>((bottom - top) * (right - left));
      float* out = at(to, target, row, column);
      for (int c = 0; c < to.channels; c += WIDTH) {
        const int count = to.channels - c;
        Vector sum = {};
        for (int y = top; y < bottom; ++y) {
          const float* in = source + y * from.row + c;
          for (int x = left; x < right; ++x) sum += load_some(in + x * from.column, count);
        }
        store_some(out + c, activate(sum * share, step), count);
      }
    }
  }
}

// `weights`: by tap, then channel, padded to whole vectors; so is `bias`.
inline void depthwise(const Step& step, const float* weights, const float* bias,
                      const float* source, const float* second, float* target) {
  const Tensor &from = step.source, &to = step.target, &with = step.second;
  const int padded = (to.channels + WIDTH - 1) / WIDTH * WIDTH;
  for (int row = 0; row < to.height; ++row) {
    for (int column = 0; column < to.width; ++column) {
      const float* other = second ? second + row * with.row + column * with.column : nullptr;
      float* out = at(to, target, row, column);
      for (int c = 0; c < to.channels; c += WIDTH) {
        const int count = to.channels - c;
        Vector value = load(bias + c);
        for_taps(step, row, column, [&](int y, int x, int tap) {
          const float* in = source + y * from.row + x * from.column + c;
          value += load_some(in, count) * load(weights + tap * padded + c);
        });
        if (other) value += load_some(other + c, count);
        store_some(out + c, activate(value, step), count);
      }
    }
  }
}

// Over the channels of each position.
inline void softmax(const Step& step, const float* source, float* target) {
  const Tensor &from = step.source, &to = step.target;
  for (int row = 0; row < to.height; ++row) {
    for (int column = 0; column < to.width; ++column) {
      const float* in = source + row * from.row + column * from.column;
      float* out = at(to, target, row, column);
      float greatest = -INFINITY, sum = 0.0f;
      for (int c = 0; c < to.channels; ++c) greatest = in[c] > greatest ? in[c] : greatest;
      for (int c = 0; c < to.channels; c += WIDTH) {
        const int count = to.channels - c;
        const Vector value = exponential(load_some(in + c, count) - greatest);
        store_some(out + c, value, count);
        for (int i = 0; i < WIDTH && i < count; ++i) sum += value[i];
      }
      const float share = 1.0f / sum;
      for (int c = 0; c < to.channels; ++c) out[c] *= share;
    }
  }
}

// Of the channels of each position, as int64; the first of equals, NaN being the greatest.
inline void argument_maximum(const Step& step, const float* source, float* target) {
  const Tensor &from = step.source, &to = step.target;
  int64_t* results = reinterpret_cast<int64_t*>(target);
  for (int row = 0; row < from.height; ++row) {
    for (int column = 0; column < from.width; ++column) {
      const float* in = source + row * from.row + column * from.column;
      int found = 0;
      for (int c = 1; c < from.channels; ++c) {
        if (in[c] > in[found] || (in[c] != in[c] && in[found] == in[found])) found = c;
      }
      results[row * to.row + column * to.column] = found;
    }
  }
}

}  // namespace brisk
