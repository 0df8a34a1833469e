// What decides about a predictor's answer: the distance gate and the selector of a learned cache.
// Mirrored, field by field, by brisk/compiled/verdict.py; the definition is brisk/exits/lookup.py.
#pragma once
#include <algorithm>
#include <vector>

#include "arithmetic.h"

namespace brisk {

// `features` of a hidden output, `rank` of them kept, a multiple of 16; `basis` (features x rank) in
// units of `unit` (features), `whitening` (rank x rank), `centres` (classes x rank). `features` 0:
// neither gate nor selector, the greatest probability is the score. Features count quarters first, then channels; those of a
// hidden output that `is_flat` are its own floats.
// `hidden` (units x (greatest + 1)), `hidden_bias` and `last` (units).
struct Verdict {
  int32_t height, width, channels, is_flat, features, rank, classes, greatest, units, padding;
  float outside, limit, floor, last_bias, least_logarithm, farthest;
  const float *mean, *scale, *unit, *whitening, *centres, *hidden, *hidden_bias, *last;
  const int8_t* basis;
};

constexpr int MOST_GREATEST = 16, MOST_RANK = 64;

// Each channel's mean in four quarters and root mean square; quarters of odd sides overlap.
inline void summarise(const Verdict& verdict, const float* image, float* features) {
  const int height = verdict.height, width = verdict.width, channels = verdict.channels;
  const int half = width / 2, upper = (height + 1) / 2, lower = height / 2;
  const float share = 1.0f / static_cast<float>(upper * ((width + 1) / 2));
  const float all_share = 1.0f / static_cast<float>(height * width);
  for (int c = 0; c < channels; c += WIDTH) {
    const int count = channels - c;
    Vector quarters[4] = {}, squares = {};
    for (int y = 0; y < height; ++y) {
      const float* in = image + static_cast<int64_t>(y) * width * channels + c;
      Vector left = {}, right = {};
      int x = 0;
      for (; x < half; ++x, in += channels) {
        const Vector value = load_some(in, count);
        left += value;
        squares += value * value;
      }
      if (width & 1) {
        const Vector value = load_some(in, count);
        left += value;
        right += value;
        squares += value * value;
        ++x;
        in += channels;
      }
      for (; x < width; ++x, in += channels) {
        const Vector value = load_some(in, count);
        right += value;
        squares += value * value;
      }
      if (y < upper) quarters[0] += left, quarters[1] += right;
      if (y >= lower) quarters[2] += left, quarters[3] += right;
    }
    for (int q = 0; q < 4; ++q) store_some(features + q * channels + c, quarters[q] * share, count);
    float sums[WIDTH];
    store(sums, squares * all_share);
    for (int i = 0; i < WIDTH && i < count; ++i) {
      features[4 * channels + c + i] = std::sqrt(sums[i]);
    }
  }
}

// to[j] = sum over i of from[i] * matrix[i][j], `columns` a multiple of 16 and at most MOST_RANK.
inline void multiply(const float* from, const float* matrix, int rows, int columns, float* to) {
  Vector sums[MOST_RANK / WIDTH] = {};
  for (int row = 0; row < rows; ++row, matrix += columns) {
    const Vector value = all(from[row]);
    for (int v = 0; v < columns / WIDTH; ++v) sums[v] += value * load(matrix + v * WIDTH);
  }
  for (int v = 0; v < columns / WIDTH; ++v) store(to + v * WIDTH, sums[v]);
}

typedef int8_t Bytes __attribute__((vector_size(WIDTH), aligned(1), may_alias));

inline Vector load_bytes(const int8_t* from) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#else
  return __builtin_convertvector(*reinterpret_cast<const Bytes*>(from), Vector);
#endif
}

// The same of a matrix of bytes whose rows are in units of `unit`. It comes from memory, where the
// model's own weights have been since: a fourth of the floats' bytes is most of a fourth of the time.
inline void multiply(const float* from, const float* unit, const int8_t* matrix, int rows,
                     int columns, float* to) {
  constexpr int AHEAD = 32;  // rows
  Vector sums[MOST_RANK / WIDTH] = {};
  for (int row = 0; row < rows; ++row, matrix += columns) {
    __builtin_prefetch(matrix + AHEAD * columns);
    const Vector value = all(from[row] * unit[row]);
    for (int v = 0; v < columns / WIDTH; ++v) {
      sums[v] += value * load_bytes(matrix + v * WIDTH);
    }
  }
  for (int v = 0; v < columns / WIDTH; ++v) store(to + v * WIDTH, sums[v]);
}

inline float squared_length(const float* from, int count) {
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) sum += from[i] * from[i];
  return sum;
}

// The logarithm of the squared distance to the predicted class over the limit.
inline float distance_of(const Verdict& verdict, const float* features, int predicted) {
  thread_local std::vector<float> standard;
  standard.resize(verdict.features);
  Vector squares = {};
  for (int i = 0; i < verdict.features; i += WIDTH) {
    const int count = verdict.features - i;
    const Vector value = (load_some(features + i, count) - load_some(verdict.mean + i, count)) *
                         load_some(verdict.scale + i, count);
    store_some(standard.data() + i, value, count);
    squares += value * value;
  }
  float length = 0.0f, inside[MOST_RANK], whitened[MOST_RANK];
  for (int i = 0; i < WIDTH; ++i) length += squares[i];
  multiply(standard.data(), verdict.unit, verdict.basis, verdict.features, verdict.rank, inside);
  const float rest = length - squared_length(inside, verdict.rank);
  multiply(inside, verdict.whitening, verdict.rank, verdict.rank, whitened);
  const float* centre = verdict.centres + predicted * verdict.rank;
  for (int i = 0; i < verdict.rank; ++i) whitened[i] -= centre[i];
  const float far = rest < 0.0f ? 0.0f : rest;  // NaN stays
  const float distance = squared_length(whitened, verdict.rank) + far * verdict.outside;
  const float share = distance / verdict.limit;
  return std::log(share < 1e-6f ? 1e-6f : share);
}

// The selector's logit: it sees the greatest log-probabilities in order, and the distance.
inline float select(const Verdict& verdict, const float* greatest, float log_total,
                    float distance) {
  float seen[MOST_GREATEST + 1];
  for (int i = 0; i < verdict.greatest; ++i) {
    seen[i] = std::max(greatest[i] - log_total, verdict.least_logarithm);
  }
  seen[verdict.greatest] = std::min(std::max(distance, -verdict.farthest), verdict.farthest);
  const int inputs = verdict.greatest + 1;
  float result = verdict.last_bias;
  for (int unit = 0; unit < verdict.units; ++unit) {
    float sum = verdict.hidden_bias[unit];
    const float* weights = verdict.hidden + unit * inputs;
    for (int i = 0; i < inputs; ++i) sum += weights[i] * seen[i];
    if (sum > 0.0f) result += verdict.last[unit] * sum;
  }
  return result;
}

// Where anything is NaN the score is 0 and the row is not near: the model answers it.
inline void decide(const Verdict& verdict, const float* image, const float* logits, float* score,
                   uint8_t* near) {
  float greatest[MOST_GREATEST];
  const int kept = std::max<int>(verdict.greatest, 1);
  int predicted = 0, found = 0;
  bool is_number = true;
  for (int c = 0; c < verdict.classes; ++c) {
    const float value = logits[c];
    is_number &= value == value;
    if (value > logits[predicted]) predicted = c;
    if (found == kept && !(value > greatest[kept - 1])) continue;
    int place = found < kept ? found++ : kept - 1;
    for (; place > 0 && value > greatest[place - 1]; --place) greatest[place] = greatest[place - 1];
    greatest[place] = value;
  }
  *score = 0.0f;
  *near = verdict.features == 0;
  if (!is_number) return;
  double total = 0.0;
  for (int c = 0; c < verdict.classes; c += WIDTH) {
    const int count = std::min(WIDTH, verdict.classes - c);
    const Vector value = exponential(load_some(logits + c, count) - greatest[0]);
    for (int i = 0; i < count; ++i) total += value[i];
  }
  if (verdict.features == 0) {
    *score = static_cast<float>(1.0 / total);
    return;
  }
  thread_local std::vector<float> summary;
  const float* features = image;
  if (!verdict.is_flat) {
    summary.resize(verdict.features);
    summarise(verdict, image, summary.data());
    features = summary.data();
  }
  const float distance = distance_of(verdict, features, predicted);
  *near = distance <= 0.0f;
  const float log_total = greatest[0] + static_cast<float>(std::log(total));
  const float found_score =
      1.0f / (1.0f + std::exp(-select(verdict, greatest, log_total, distance)));
  if (*near && found_score >= verdict.floor) *score = found_score;
}

}  // namespace brisk
