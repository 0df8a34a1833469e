// Convolutions of 3 x 3 taps with fewer multiplications: Lavin and Gray, Fast Algorithms for
// Convolutional Neural Networks (2015), F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3).
//
// Tiles of U x U outputs are computed from (U + 2) x (U + 2) inputs, which are transformed, then
// multiplied place by place, as (U + 2)^2 products of matrices, then transformed back.
#pragma once
#include "direct.h"

namespace brisk {

// Section 4.1: the rows of B^T, of one column of inputs.
template <int U>
inline void transform_inputs(const Vector* d, int step, Vector* to);

template <>
inline void transform_inputs<2>(const Vector* d, int s, Vector* to) {
  to[0] = d[0] - d[2 * s];
  to[s] = d[s] + d[2 * s];
  to[2 * s] = d[2 * s] - d[s];
  to[3 * s] = d[s] - d[3 * s];
}

template <>
inline void transform_inputs<4>(const Vector* d, int s, Vector* to) {
  const Vector even = d[4 * s] - d[2 * s] * 4.0f, odd = d[3 * s] - d[s] * 4.0f;
  const Vector far = d[4 * s] - d[2 * s], twice = (d[3 * s] - d[s]) * 2.0f;
  const Vector first = d[0] * 4.0f - d[2 * s] * 5.0f + d[4 * s];
  const Vector last = d[s] * 4.0f - d[3 * s] * 5.0f + d[5 * s];
  to[0] = first;
  to[s] = even + odd;
  to[2 * s] = even - odd;
  to[3 * s] = far + twice;
  to[4 * s] = far - twice;
  to[5 * s] = last;
}

// The rows of A^T: from U + 2 sums to U outputs.
template <int U>
inline void transform_sums(const Vector* m, int step, Vector* to);

template <>
inline void transform_sums<2>(const Vector* m, int s, Vector* to) {
  to[0] = m[0] + m[s] + m[2 * s];
  to[s] = m[s] - m[2 * s] - m[3 * s];
}

template <>
inline void transform_sums<4>(const Vector* m, int s, Vector* to) {
  const Vector sum = m[s] + m[2 * s], difference = m[s] - m[2 * s];
  const Vector far = m[3 * s] + m[4 * s], apart = m[3 * s] - m[4 * s];
  to[0] = m[0] + sum + far;
  to[s] = difference + apart * 2.0f;
  to[2 * s] = sum + far * 4.0f;
  to[3 * s] = difference + apart * 8.0f + m[5 * s];
}

// The three taps back from those places of the transformed ones that tell them: the first, the second
// and third, and the last row of G.
template <int U>
inline void recover_taps(const Vector* t, int s, Vector* to) {
  to[0] = U == 2 ? t[0] : t[0] * 4.0f;
  to[s] = U == 2 ? t[s] - t[2 * s] : (t[2 * s] - t[s]) * 3.0f;
  to[2 * s] = t[(U + 1) * s];
}

template <int U>
class Winograd {
 public:
  Winograd(const Layer& layer, const Call& call)
      : layer_(layer),
        call_(call),
        across_(divided_up(call.out_width, U)),
        down_(divided_up(call.out_height, U)),
        blocks_(layer.channels / WIDTH),
        panels_(divided_up(layer.outputs, PANEL)) {}

  void run(Team& team, int threads) {
    const int64_t all = static_cast<int64_t>(call_.images) * across_ * down_;
    const int64_t groups = divided_up(all, TILE);
    const int64_t group_floats = PLACES * TILE * (layer_.channels + panels_ * PANEL);
    const int64_t most = std::max<int64_t>(CACHED_FLOATS / group_floats, threads);
    const int64_t parts = divided_up(groups, most), part = divided_up(groups, parts);
    inputs_ = workspace(1, PLACES * part * TILE * layer_.channels);
    sums_ = workspace(2, PLACES * part * TILE * panels_ * PANEL);
    place_ = part * TILE;
    for (first_ = 0; first_ < all; first_ += place_) {
      count_ = std::min(place_, all - first_);
      team.share([](void* self, int chunk) { static_cast<Winograd*>(self)->transform(chunk); },
                 this, divided_up(count_, TILE));
      team.share([](void* self, int chunk) { static_cast<Winograd*>(self)->compute(chunk); }, this,
                 PLACES);
      team.share([](void* self, int chunk) { static_cast<Winograd*>(self)->finish(chunk); }, this,
                 divided_up(count_, TILE));
    }
  }

 private:
  static constexpr int SIDE = U + 2, PLACES = SIDE * SIDE;
  static constexpr int64_t CACHED_FLOATS = 480 * 1024;  // of inputs and sums at a time

  struct Corner {
    int64_t image;
    int row, column;  // of the tile's first output
  };

  Corner corner(int64_t tile) const {
    return {tile / across_ / down_, static_cast<int>(tile / across_ % down_) * U,
            static_cast<int>(tile % across_) * U};
  }

  // Of tiles `group` * TILE and on: packed as `multiply` wants them, for each place.
  void transform(int group) {
    const int count = std::min<int64_t>(TILE, count_ - group * TILE), rows = packed_rows(count);
    const int channels = layer_.channels;
    for (int r = 0; r < rows; ++r) {
      const Corner at = corner(std::min(first_ + group * TILE + r, first_ + count_ - 1));
      const float* image = call_.source + at.image * call_.height * call_.width * channels;
      const int top = at.row - layer_.before[0], left = at.column - layer_.before[1];
      const bool is_inside =
          top >= 0 && left >= 0 && top + SIDE <= call_.height && left + SIDE <= call_.width;
      float* to = inputs_ + static_cast<int64_t>(group) * TILE * channels + r * WIDTH;
      for (int c = 0; c < channels; c += WIDTH, to += rows * WIDTH) {
        Vector d[PLACES], t[PLACES];
        for (int y = 0; y < SIDE; ++y) {
          for (int x = 0; x < SIDE; ++x) {
            const int row = top + y, column = left + x;
            const bool is_there = is_inside || (row >= 0 && row < call_.height && column >= 0 &&
                                                column < call_.width);
            const int64_t offset = (static_cast<int64_t>(row) * call_.width + column) * channels;
            d[y * SIDE + x] = is_there ? load(image + offset + c) : Vector{};
          }
        }
        for (int x = 0; x < SIDE; ++x) transform_inputs<U>(d + x, SIDE, t + x);
        for (int y = 0; y < SIDE; ++y) {
          Vector line[SIDE];
          transform_inputs<U>(t + y * SIDE, 1, line);
          for (int x = 0; x < SIDE; ++x) {
            store(to + (y * SIDE + x) * place_ * channels, line[x]);
          }
        }
      }
    }
  }

  void compute(int place) {
    const int64_t outputs = panels_ * PANEL, panel_floats = blocks_ * WIDTH * PANEL;
    const float* inputs = inputs_ + place * place_ * layer_.channels;
    float* sums = sums_ + place * place_ * outputs;
    for (int panel = 0; panel < panels_; ++panel) {
      const float* weights = layer_.weights + (place * panels_ + panel) * panel_floats;
      for (int64_t tile = 0; tile < count_; tile += TILE) {
        const int rows = packed_rows(std::min<int64_t>(TILE, count_ - tile));
        multiply_tile(rows, layer_.outputs - panel * PANEL, inputs + tile * layer_.channels,
                      weights, blocks_, sums + tile * outputs + panel * PANEL, outputs, false,
                      ahead(weights, panel_floats, tile / TILE, divided_up(count_, TILE)));
      }
    }
  }

  void finish(int group) {
    const int64_t outputs = panels_ * PANEL;
    const int64_t end = std::min<int64_t>((group + 1) * TILE, count_);
    for (int64_t tile = group * TILE; tile < end; ++tile) {
      const Corner at = corner(first_ + tile);
      const int height = std::min(U, call_.out_height - at.row);
      const int width = std::min(U, call_.out_width - at.column);
      Fate fate = Fate::UNKNOWN;
      for (int c = 0; c < layer_.outputs; c += WIDTH) {
        Vector m[PLACES], t[U * SIDE], sums[U * U], check = {};
        const float* from = sums_ + tile * outputs + c;
        for (int i = 0; i < PLACES; ++i) m[i] = load(from + i * place_ * outputs);
        for (int x = 0; x < SIDE; ++x) transform_sums<U>(m + x, SIDE, t + x);
        for (int y = 0; y < U; ++y) transform_sums<U>(t + y * SIDE, 1, sums + y * U);
        for (int i = 0; i < U * U; ++i) check += sums[i] * 0.0f;
        if (__builtin_expect(!(sum_of(check) == 0.0f), false)) {
          if (fate == Fate::UNKNOWN) fate = fate_of(at);
          if (fate == Fate::MIXED) sum_up_taps(at, c, sums);
        }
        for (int y = 0; y < height; ++y) {
          const int64_t row = at.image * call_.out_height + at.row + y;
          const int64_t offset = (row * call_.out_width + at.column) * layer_.outputs + c;
          finish_vectors(sums + y * U, width, offset, c);
        }
      }
    }
  }

  // What numbers a tile of sums that are not all finite has. LOST: none; they are right as they are.
  enum class Fate { UNKNOWN, LOST, MIXED };

  Fate fate_of(const Corner& at) const {
    bool is_lost[SIDE][SIDE] = {};
    for (int y = 0; y < SIDE; ++y) {
      for (int x = 0; x < SIDE; ++x) {
        const float* input = input_at(at, y, x);
        Vector sum = {};
        for (int c = 0; input && c < layer_.channels; c += WIDTH) {
          const Vector value = load(input + c);
          sum += value == value ? Vector{} : value;
        }
        is_lost[y][x] = !(sum_of(sum) == 0.0f);
      }
    }
    for (int y = 0; y < U; ++y) {
      for (int x = 0; x < U; ++x) {
        bool is_seen = false;
        for (int tap = 0; tap < 9; ++tap) is_seen |= is_lost[y + tap / 3][x + tap % 3];
        if (!is_seen) return Fate::MIXED;
      }
    }
    return Fate::LOST;
  }

  // The sums of a tile tap by tap, as the definition has them: an infinity or NaN reaches only the
  // outputs that read it. In a tile's form it reaches all, as a difference of infinities.
  void sum_up_taps(const Corner& at, int channel, Vector* sums) const {
    const int64_t panel_floats = blocks_ * WIDTH * PANEL;
    const float* weights = layer_.weights + channel / PANEL * panel_floats + channel % PANEL;
    for (int i = 0; i < U * U; ++i) sums[i] = Vector{};
    for (int c = 0; c < layer_.channels; ++c) {
      Vector t[PLACES], lines[3 * SIDE], taps[9];
      for (int i = 0; i < PLACES; ++i) t[i] = load(weights + i * panels_ * panel_floats + c * PANEL);
      for (int x = 0; x < SIDE; ++x) recover_taps<U>(t + x, SIDE, lines + x);
      for (int y = 0; y < 3; ++y) recover_taps<U>(lines + y * SIDE, 1, taps + y * 3);
      for (int y = 0; y < SIDE; ++y) {
        for (int x = 0; x < SIDE; ++x) {
          const float* input = input_at(at, y, x);
          if (!input) continue;
          for (int tap = 0; tap < 9; ++tap) {
            const int row = y - tap / 3, column = x - tap % 3;
            if (row < 0 || row >= U || column < 0 || column >= U) continue;
            sums[row * U + column] += taps[tap] * input[c];
          }
        }
      }
    }
  }

  // The channels that a tile reads in its row y and column x; null beyond the image.
  const float* input_at(const Corner& at, int y, int x) const {
    const int row = at.row - layer_.before[0] + y, column = at.column - layer_.before[1] + x;
    if (row < 0 || row >= call_.height || column < 0 || column >= call_.width) return nullptr;
    const int64_t line = static_cast<int64_t>(at.image) * call_.height + row;
    return call_.source + (line * call_.width + column) * layer_.channels;
  }

  void finish_vectors(const Vector* line, int width, int64_t offset, int channel) const {
    const Vector bias = load(layer_.bias + channel);
    const int columns = layer_.outputs - channel;
    for (int x = 0; x < width; ++x, offset += layer_.outputs) {
      Vector value = line[x] + bias;
      if (call_.second) value += load_some(call_.second + offset, columns);
      store_some(call_.target + offset, activate(value, layer_), columns);
    }
  }

  const Layer& layer_;
  const Call& call_;
  const int across_, down_;
  const int64_t blocks_, panels_;
  float *inputs_ = nullptr, *sums_ = nullptr;
  int64_t first_ = 0, count_ = 0, place_ = 0;  // tiles
};

}  // namespace brisk
