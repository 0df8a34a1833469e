// Vectors of the machine's own width, and the activation functions on them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "network.h"

namespace brisk {

#if defined(__AVX512F__)
constexpr int WIDTH = 16, ROWS = 8;
#elif defined(__AVX__)
constexpr int WIDTH = 8, ROWS = 6;
#else
constexpr int WIDTH = 4, ROWS = 6;
#endif

typedef float Vector __attribute__((vector_size(4 * WIDTH)));
typedef float Loose __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t Integers __attribute__((vector_size(4 * WIDTH)));

inline Vector load(const float* from) { return *reinterpret_cast<const Loose*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Loose*>(to) = value; }
inline Vector all(float value) { return value - Vector{}; }  // x - 0 is x, for -0 as well

#if defined(__AVX512F__)
inline __mmask16 first(int count) { return (1u << count) - 1; }
#endif

// The first `count` floats, zeros behind them; all where there are more.
inline Vector load_some(const float* from, int count) {
  if (count >= WIDTH) return load(from);
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(first(count), from);
#endif
  Vector value = {};
  std::memcpy(&value, from, sizeof(float) * count);
  return value;
}

inline void store_some(float* to, Vector value, int count) {
  if (count >= WIDTH) return store(to, value);
#if defined(__AVX512F__)
  return _mm512_mask_storeu_ps(to, first(count), value);
#endif
  std::memcpy(to, &value, sizeof(float) * count);
}

inline float greatest_of(Vector value) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(value);
#endif
  float found = value[0];
  for (int i = 1; i < WIDTH; ++i) found = value[i] > found ? value[i] : found;
  return found;
}

inline float sum_of(Vector value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(value);
#endif
  float sum = value[0];
  for (int i = 1; i < WIDTH; ++i) sum += value[i];
  return sum;
}

// NaN passes through both: a comparison with it is false.
inline Vector at_least(Vector value, float low) { return value < all(low) ? all(low) : value; }
inline Vector at_most(Vector value, float high) { return value > all(high) ? all(high) : value; }

// e^x to two units in the last place: Cephes' expf, x = n ln 2 + r, polynomial of degree 5 in r.
inline Vector exponential(Vector x) {
  Vector bounded = at_most(at_least(x, -87.0f), 88.0f);
  bounded = bounded == bounded ? bounded : Vector{};
  Vector turns = bounded * 1.44269504088896341f + (bounded < Vector{} ? all(-0.5f) : all(0.5f));
  Integers n = __builtin_convertvector(turns, Integers);
  Vector whole = __builtin_convertvector(n, Vector);
  Vector r = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;
  Vector p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Integers power = (n + 127) << 23;
  Vector scale;
  std::memcpy(&scale, &power, sizeof scale);
  Vector result = p * scale;
  result = x < all(-87.0f) ? Vector{} : result;
  result = x > all(88.7f) ? all(INFINITY) : result;
  return x == x ? result : x;
}

inline Vector sigmoid(Vector x) { return all(1.0f) / (exponential(-x) + 1.0f); }

inline Vector hyperbolic_tangent(Vector x) {
  Vector magnitude = x < Vector{} ? -x : x;
  Vector small = x - x * x * x * (1.0f / 3.0f) + x * x * x * x * x * (2.0f / 15.0f);
  Vector far = all(1.0f) - all(2.0f) / (exponential(magnitude * 2.0f) + 1.0f);
  far = x < Vector{} ? -far : far;
  return magnitude < all(0.05f) ? small : far;
}

// erf by Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
inline Vector error_function(Vector x) {
  Vector magnitude = x < Vector{} ? -x : x;
  Vector t = all(1.0f) / (magnitude * 0.3275911f + 1.0f);
  Vector p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  Vector result = all(1.0f) - p * t * exponential(-magnitude * magnitude);
  return x < Vector{} ? -result : result;
}

// `S`: what has an activation, alpha and beta.
template <class S>
inline Vector activate(Vector x, const S& step) {
  switch (step.activation) {
    case RELU: return at_least(x, 0.0f);
    case CLIP: return at_most(at_least(x, step.alpha), step.beta);
    case SIGMOID: return sigmoid(x);
    case TANH: return hyperbolic_tangent(x);
    case SILU: return x * sigmoid(x);
    case HARD_SWISH: return x * at_most(at_least(x * (1.0f / 6.0f) + 0.5f, 0.0f), 1.0f);
    case LEAKY_RELU: return x < Vector{} ? x * step.alpha : x;
    case GELU: return x * 0.5f * (error_function(x * 0.70710678118654752f) + 1.0f);
    case HARD_SIGMOID: return at_most(at_least(x * (1.0f / 6.0f) + 0.5f, 0.0f), 1.0f);
    default: return x;
  }
}

}  // namespace brisk
