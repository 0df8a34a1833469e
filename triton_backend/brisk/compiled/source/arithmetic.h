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

// The greater one (the lesser one); `other` where one of them is NaN.
#if defined(__AVX512F__)
inline Vector greater_one(Vector value, Vector other) { return _mm512_max_ps(value, other); }
inline Vector lesser_one(Vector value, Vector other) { return _mm512_min_ps(value, other); }
#else
inline Vector greater_one(Vector value, Vector other) { return value > other ? value : other; }
inline Vector lesser_one(Vector value, Vector other) { return value < other ? value : other; }
#endif

// NaN passes through both.
inline Vector at_least(Vector value, float low) { return greater_one(all(low), value); }
inline Vector at_most(Vector value, float high) { return lesser_one(all(high), value); }

// e^x for -87 <= x <= 88 to two units in the last place: Cephes' expf, x = n ln 2 + r, polynomial of
// degree 5 in r. With AVX-512 2^n may leave the range.
inline Vector bounded_exponential(Vector x) {
#if defined(__AVX512F__)
  const Vector whole = _mm512_roundscale_ps(x * 1.44269504088896341f, 0);  // to the nearest integer
#else
  const Vector turns = x * 1.44269504088896341f + (x < Vector{} ? all(-0.5f) : all(0.5f));
  const Integers n = __builtin_convertvector(turns, Integers);
  const Vector whole = __builtin_convertvector(n, Vector);
#endif
  const Vector r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Vector p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, whole);
#else
  const Integers power = (n + 127) << 23;
  Vector scale;
  std::memcpy(&scale, &power, sizeof scale);
  return p * scale;
#endif
}

inline Vector exponential(Vector x) {
#if defined(__AVX512F__)
  // The bounds lie where 2^n has left the range, towards 0 or infinity; NaN passes through.
  return bounded_exponential(at_most(at_least(x, -110.0f), 100.0f));
#else
  Vector bounded = at_most(at_least(x, -87.0f), 88.0f);
  bounded = bounded == bounded ? bounded : Vector{};
  Vector result = bounded_exponential(bounded);
  result = x < all(-87.0f) ? Vector{} : result;
  result = x > all(88.7f) ? all(INFINITY) : result;
  return x == x ? result : x;
#endif
}

// e^x for x <= 0 or NaN: 0 below -87.
inline Vector falling_exponential(Vector x) {
  const Vector bounded = at_least(x, -87.0f);
#if defined(__AVX512F__)
  const Vector result = bounded_exponential(bounded);  // NaN passes through
#else
  const Vector known = bounded_exponential(bounded == bounded ? bounded : Vector{});
  const Vector result = x == x ? known : x;
#endif
  return x < all(-87.0f) ? Vector{} : result;
}

inline Vector sigmoid(Vector x) { return all(1.0f) / (exponential(-x) + 1.0f); }

inline Vector hyperbolic_tangent(Vector x) {
  Vector magnitude = x < Vector{} ? -x : x;
  Vector small = x - x * x * x * (1.0f / 3.0f) + x * x * x * x * x * (2.0f / 15.0f);
  Vector far = all(1.0f) - all(2.0f) / (exponential(magnitude * 2.0f) + 1.0f);
  far = x < Vector{} ? -far : far;
  return magnitude < all(0.05f) ? small : far;
}

// x * (1 + erf(x / sqrt 2)) / 2, absolute error below 7e-7. erf(x / sqrt 2) / x is a function of x^2:
// a polynomial of degree 14 whose greatest error times |x| is least, fitted by Lawson's iteration to
// erf on |x| <= 5.25; beyond, erf is 1 to 2e-7.
inline Vector gaussian_error_linear_unit(Vector x) {
  constexpr float REACH = 5.25f;
  const Vector half = x * 0.5f;
  const Vector t = at_most(x * x * (2.0f / (REACH * REACH)) - 1.0f, 1.0f);
  Vector p = all(0.0004798908776137978f);
  p = p * t - 0.00131316389888525f;
  p = p * t + 0.0013294953387230635f;
  p = p * t - 0.002079080557450652f;
  p = p * t + 0.005784682463854551f;
  p = p * t - 0.010897026397287846f;
  p = p * t + 0.016835767775774002f;
  p = p * t - 0.02555050700902939f;
  p = p * t + 0.03707728907465935f;
  p = p * t - 0.050083864480257034f;
  p = p * t + 0.06406287848949432f;
  p = p * t - 0.07952682673931122f;
  p = p * t + 0.09929157048463821f;
  p = p * t - 0.1342536360025406f;
  p = p * t + 0.26931869983673096f;
  const Vector inner = half + half * (x * p);
  const Vector outer = x < Vector{} ? Vector{} : x;
  return (x >= all(REACH)) | (x <= all(-REACH)) ? outer : inner;
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
    case GELU: return gaussian_error_linear_unit(x);
    case HARD_SIGMOID: return at_most(at_least(x * (1.0f / 6.0f) + 0.5f, 0.0f), 1.0f);
    default: return x;
  }
}

}  // namespace brisk
