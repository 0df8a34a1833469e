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

inline void gate(const Step& step, const float* source, const float* factors, float* target) {
  for_vectors(step, source, nullptr, target, [&](const float* in, const float*, float* out, int count) {
    const float* factor = factors + (step.target.channels - count);
    store_some(out, activate(load_some(in, count) * load_some(factor, count), step), count);
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

// `COUNT` vectors of channels from `c` on, of one position of the target.
template <int COUNT>
inline void pool_vectors(const Step& step, const float* source, int row, int column, int c,
                         float* out) {
  const Tensor& from = step.source;
  const bool is_maximum = step.kind == MAXIMUM_POOL;
  Vector values[COUNT];
  for (Vector& value : values) value = all(is_maximum ? -INFINITY : 0.0f);
  const int found = for_taps(step, row, column, [&](int y, int x, int) {
    const float* in = source + y * from.row + x * from.column + c;
#pragma GCC unroll 4
    for (int i = 0; i < COUNT; ++i) {
      const Vector next = load_some(in + i * WIDTH, from.channels - c - i * WIDTH);
      values[i] = is_maximum ? greater(values[i], next) : values[i] + next;
    }
  });
  const float divisor = step.counts_padding ? step.kernel[0] * step.kernel[1] : found;
#pragma GCC unroll 4
  for (int i = 0; i < COUNT; ++i) {
    if (!is_maximum) values[i] /= divisor;
    store_some(out + c + i * WIDTH, activate(values[i], step), from.channels - c - i * WIDTH);
  }
}

inline void pool(const Step& step, const float* source, float* target) {
  const Tensor& to = step.target;
  for (int row = 0; row < to.height; ++row) {
    for (int column = 0; column < to.width; ++column) {
      float* out = at(to, target, row, column);
      int c = 0;
      for (; to.channels - c >= 4 * WIDTH; c += 4 * WIDTH) {
        pool_vectors<4>(step, source, row, column, c, out);
      }
      for (; c < to.channels; c += WIDTH) {
        pool_vectors<1>(step, source, row, column, c, out);
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
