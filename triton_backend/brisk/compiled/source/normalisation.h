// Normalisation of rows by their own mean and variance.
#pragma once
#include "attention.h"

namespace brisk {

// target = (source - mean) / sqrt(variance + epsilon) * scale + bias, row by row.
struct Normalising {
  int64_t rows, width;
  float epsilon;
  const float *scale, *bias, *source;  // no bias: null
  float* target;

  void run(Team& team) {
    const int64_t chunks = divided_up(rows, chunk_rows());
    team.share([](void* self, int chunk) { static_cast<Normalising*>(self)->normalise(chunk); },
               this, chunks);
  }

 private:
  static constexpr int64_t CHUNK_FLOATS = 8192;

  int64_t chunk_rows() const { return divided_up(CHUNK_FLOATS, width); }

  void normalise(int chunk) const {
    const int64_t begin = chunk * chunk_rows(), end = std::min(begin + chunk_rows(), rows);
    for (int64_t row = begin; row < end; ++row) normalise_row(source + row * width, target + row * width);
  }

  void normalise_row(const float* from, float* to) const {
    const int64_t whole = width / WIDTH * WIDTH;
    const int rest = width - whole;
    Vector sum = {}, squares = {};
    for (int64_t i = 0; i < whole; i += WIDTH) sum += load(from + i);
    if (rest) sum += load_some(from + whole, rest);
    const float mean = sum_of(sum) / width;
    for (int64_t i = 0; i < whole; i += WIDTH) {
      const Vector apart = load(from + i) - mean;
      squares += apart * apart;
    }
    if (rest) {
      const Vector apart = load_or(from + whole, rest, mean) - mean;
      squares += apart * apart;
    }
    const float factor = 1.0f / std::sqrt(sum_of(squares) / width + epsilon);
    for (int64_t i = 0; i < width; i += WIDTH) {
      const int count = std::min<int64_t>(WIDTH, width - i);
      Vector value = (load_some(from + i, count) - mean) * factor * load_some(scale + i, count);
      if (bias) value += load_some(bias + i, count);
      store_some(to + i, value, count);
    }
  }
};

}  // namespace brisk
