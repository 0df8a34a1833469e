// Convolutions as products: the taps of each output position are the row of a matrix.
#pragma once
#include <vector>

#include "blocks.h"
#include "layer.h"
#include "team.h"
#include "workplace.h"

namespace brisk {

// Adds bias and second operand, applies the activation: `count` rows of `stride` floats from
// `from` to a target whose positions lie side by side. A whole panel wide.
template <class F>
inline void finish_panels(const Layer& layer, const Call& call, const float* from, int64_t stride,
                          int64_t offset, int count, int channel, F activated) {
  const Vector first = load(layer.bias + channel), last = load(layer.bias + channel + WIDTH);
  for (int r = 0; r < count; ++r, from += stride, offset += layer.outputs) {
    Vector left = load(from) + first, right = load(from + WIDTH) + last;
    if (call.second) {
      left += load(call.second + offset);
      right += load(call.second + offset + WIDTH);
    }
    store(call.target + offset, activated(left));
    store(call.target + offset + WIDTH, activated(right));
  }
}

// The same for `columns` of the panel.
inline void finish_rows(const Layer& layer, const Call& call, const float* from, int64_t stride,
                        int64_t position, int count, int channel, int columns) {
  int64_t offset = position * layer.outputs + channel;
  if (columns == PANEL && layer.activation <= RELU) {
    const float low = layer.activation == RELU ? 0.0f : -INFINITY;
    return finish_panels(layer, call, from, stride, offset, count, channel,
                         [low](Vector value) { return at_least(value, low); });
  }
  if (columns == PANEL && layer.activation == GELU) {
    return finish_panels(layer, call, from, stride, offset, count, channel,
                         gaussian_error_linear_unit);
  }
  for (int r = 0; r < count; ++r, from += stride, offset += layer.outputs) {
    for (int v = 0; v < columns; v += WIDTH) {
      Vector value = load(from + v) + load(layer.bias + channel + v);
      if (call.second) value += load_some(call.second + offset + v, columns - v);
      store_some(call.target + offset + v, activate(value, layer), columns - v);
    }
  }
}

class Direct {
 public:
  Direct(const Layer& layer, const Call& call)
      : layer_(layer),
        call_(call),
        positions_(static_cast<int64_t>(call.images) * call.out_height * call.out_width),
        inputs_(layer.kernel[0] * layer.kernel[1] * layer.channels),
        blocks_(divided_up(inputs_, WIDTH)),
        panels_(divided_up(layer.outputs, PANEL)),
        tile_floats_(blocks_ * WIDTH * TILE),
        is_matrix_(inputs_ == layer.channels && layer.stride[0] == 1 && layer.stride[1] == 1 &&
                   layer.before[0] == 0 && layer.before[1] == 0 &&
                   call.out_height == call.height && call.out_width == call.width) {}

  // Where the weights stay in a core's cache, it packs a few tiles and multiplies them by all
  // panels; else every panel is read once, for as many tiles as stay in the cache.
  void run(Team& team, int threads) {
    const int64_t tiles = divided_up(positions_, TILE);
    const int64_t fair = std::min(tiles / (8 * threads), MOST_TILES);
    group_ = std::min(NEAR_FLOATS / tile_floats_, fair);
    if (panels_ * blocks_ * WIDTH * PANEL <= CACHED_WEIGHTS && group_ >= NEAR_TILES) {
      count_ = tiles;
      team.share([](void* self, int chunk) { static_cast<Direct*>(self)->pack_and_compute(chunk); },
                 this, divided_up(tiles, group_));
      return;
    }
    const int64_t most = std::max<int64_t>(CACHED_FLOATS / tile_floats_, threads);
    const int64_t parts = divided_up(tiles, most), part = divided_up(tiles, parts);
    packed_ = workspace(0, part * tile_floats_);
    group_ = std::max<int64_t>(SHARED_PRODUCTS / (tile_floats_ * PANEL), FEWEST_TILES);
    group_ = std::min({group_, part, MOST_TILES});
    for (first_ = 0; first_ < tiles; first_ += part) {
      count_ = std::min(part, tiles - first_);
      groups_ = divided_up(count_, group_);
      team.share([](void* self, int chunk) { static_cast<Direct*>(self)->pack(chunk); }, this,
                 divided_up(count_, PACKED_TILES));
      team.share([](void* self, int chunk) { static_cast<Direct*>(self)->compute(chunk); }, this,
                 groups_ * panels_);
    }
  }

 private:
  static constexpr int64_t CACHED_WEIGHTS = 200 * 1024, CACHED_FLOATS = 256 * 1024;
  static constexpr int64_t NEAR_FLOATS = 32 * 1024, NEAR_TILES = 3;
  static constexpr int64_t SHARED_PRODUCTS = 2'000'000;  // multiplications of a chunk
  static constexpr int64_t FEWEST_TILES = 8, MOST_TILES = 32;  // of a chunk
  static constexpr int64_t PACKED_TILES = 2;                   // of a chunk that only packs
  static constexpr int64_t LINES_AHEAD = 16;  // of each row while it is packed
  static constexpr int64_t MOST_BLOCKS = 1536 / WIDTH;

  int rows_of(int64_t tile) const {
    return std::min<int64_t>(TILE, positions_ - (first_ + tile) * TILE);
  }

  void pack_and_compute(int chunk) {
    static thread_local std::vector<float> memory;
    if (memory.size() < static_cast<size_t>(group_ * tile_floats_ + WIDTH)) {
      memory.resize(group_ * tile_floats_ + WIDTH);
    }
    float* packed = memory.data() + (WIDTH - reinterpret_cast<uintptr_t>(memory.data()) / 4 % WIDTH);
    const int64_t begin = chunk * group_, end = std::min(begin + group_, count_);
    for (int64_t tile = begin; tile < end; ++tile) {
      pack_tile(tile, packed + (tile - begin) * tile_floats_);
    }
    for (int panel = 0; panel < panels_; ++panel) multiply_tiles(panel, begin, end, packed);
  }

  void pack(int chunk) {
    const int64_t begin = chunk * PACKED_TILES, end = std::min(begin + PACKED_TILES, count_);
    for (int64_t tile = begin; tile < end; ++tile) pack_tile(tile, packed_ + tile * tile_floats_);
  }

  void compute(int chunk) {
    const int64_t begin = chunk % groups_ * group_, end = std::min(begin + group_, count_);
    multiply_tiles(chunk / groups_, begin, end, packed_ + begin * tile_floats_);
  }

  // `packed`: of tile `begin` and those behind. Long rows are taken in parts, so that those of a
  // panel stay in the cache for all tiles.
  void multiply_tiles(int panel, int64_t begin, int64_t end, const float* packed) const {
    const int channel = panel * PANEL, columns = std::min(PANEL, layer_.outputs - channel);
    const float* weights = layer_.weights + panel * blocks_ * WIDTH * PANEL;
    alignas(64) float sums[MOST_TILES][TILE * PANEL];
    for (int64_t done = 0; done < blocks_; done += MOST_BLOCKS) {
      const int64_t blocks = std::min(MOST_BLOCKS, blocks_ - done);
      const float* part = weights + done * WIDTH * PANEL;
      for (int64_t tile = begin; tile < end; ++tile) {
        const int count = rows_of(tile), rows = packed_rows(count);
        if (done + blocks == blocks_) fetch_rows((first_ + tile) * TILE, count, channel);
        multiply_tile(rows, columns, packed + (tile - begin) * tile_floats_ + done * WIDTH * rows,
                      part, blocks, sums[tile - begin], PANEL, done > 0,
                      ahead(part, blocks * WIDTH * PANEL, tile - begin, end - begin));
        if (done + blocks < blocks_) continue;
        finish_rows(layer_, call_, sums[tile - begin], PANEL, (first_ + tile) * TILE, count,
                    channel, columns);
      }
    }
  }

  // What `finish_rows` will read and write comes while the products are computed.
  void fetch_rows(int64_t position, int count, int channel) const {
    int64_t offset = position * layer_.outputs + channel;
    for (int r = 0; r < count; ++r, offset += layer_.outputs) {
      __builtin_prefetch(call_.target + offset, 1);
      __builtin_prefetch(call_.target + offset + WIDTH, 1);
      if (!call_.second) continue;
      __builtin_prefetch(call_.second + offset);
      __builtin_prefetch(call_.second + offset + WIDTH);
    }
  }

  void pack_tile(int64_t tile, float* to) const {
    const int count = rows_of(tile), rows = packed_rows(count);
    const int64_t position = (first_ + tile) * TILE, line = (blocks_ + 1) * WIDTH;
    const bool is_ragged = layer_.channels % WIDTH;
    if (is_matrix_ && !is_ragged) return pack_lines(call_.source + position * inputs_, count, rows, to);
    static thread_local std::vector<float> lines;
    if (is_ragged && lines.size() < static_cast<size_t>(TILE * line)) lines.resize(TILE * line);
    int column = position % call_.out_width, row = position / call_.out_width % call_.out_height;
    int64_t image = position / call_.out_width / call_.out_height;
    for (int r = 0; r < count; ++r) {
      const float* from = call_.source + image * call_.height * call_.width * layer_.channels;
      const int top = row * layer_.stride[0] - layer_.before[0];
      const int left = column * layer_.stride[1] - layer_.before[1];
      if (is_ragged) {
        gather(from, top, left, lines.data() + r * line);
      } else {
        pack_row(from, top, left, to + r * WIDTH, rows * WIDTH);
      }
      if (++column < call_.out_width) continue;
      column = 0;
      if (++row < call_.out_height) continue;
      row = 0;
      ++image;
    }
    for (int64_t block = 0; block < blocks_; ++block, to += rows * WIDTH) {
      for (int r = 0; is_ragged && r < count; ++r) {
        store(to + r * WIDTH, load(lines.data() + r * line + block * WIDTH));
      }
      for (int r = count; r < rows; ++r) store(to + r * WIDTH, Vector{});
    }
  }

  // Positions that lie side by side: block by block, so that what is written is written in order.
  void pack_lines(const float* from, int count, int rows, float* to) const {
    for (int64_t block = 0; block < blocks_; ++block, from += WIDTH, to += rows * WIDTH) {
      for (int r = 0; r < count; ++r) {
        __builtin_prefetch(from + r * inputs_ + LINES_AHEAD * WIDTH);
        store(to + r * WIDTH, load(from + r * inputs_));
      }
      for (int r = count; r < rows; ++r) store(to + r * WIDTH, Vector{});
    }
  }

  // The taps of one position whose first one is at (top, left) of the image; `to` is followed by
  // the next block after `stride` floats.
  void pack_row(const float* image, int top, int left, float* to, int64_t stride) const {
    const int channels = layer_.channels;
    for (int y = 0; y < layer_.kernel[0]; ++y) {
      const int row = top + y * layer_.dilation[0];
      for (int x = 0; x < layer_.kernel[1]; ++x) {
        const int column = left + x * layer_.dilation[1];
        if (row >= 0 && row < call_.height && column >= 0 && column < call_.width) {
          const float* from = image + (static_cast<int64_t>(row) * call_.width + column) * channels;
          for (int c = 0; c < channels; c += WIDTH, to += stride) store(to, load(from + c));
        } else {
          for (int c = 0; c < channels; c += WIDTH, to += stride) store(to, Vector{});
        }
      }
    }
  }

  // The same where channels do not fill vectors: the taps side by side, zeros behind.
  void gather(const float* image, int top, int left, float* to) const {
    const int channels = layer_.channels, width = layer_.kernel[1];
    float* const end = to + blocks_ * WIDTH;
    for (int y = 0; y < layer_.kernel[0]; ++y) {
      const int row = top + y * layer_.dilation[0];
      const bool is_inside = row >= 0 && row < call_.height;
      const float* from = image + static_cast<int64_t>(row) * call_.width * channels;
      if (is_inside && layer_.dilation[1] == 1 && left >= 0 && left + width <= call_.width) {
        to = copied(from + left * channels, width * channels, to);
        continue;
      }
      for (int x = 0; x < width; ++x) {
        const int column = left + x * layer_.dilation[1];
        if (is_inside && column >= 0 && column < call_.width) {
          to = copied(from + column * channels, channels, to);
        } else {
          to = std::fill_n(to, channels, 0.0f);
        }
      }
    }
    std::fill(to, end, 0.0f);
  }

  // Behind the last float up to a vector's room is overwritten, too.
  static float* copied(const float* from, int count, float* to) {
    for (int done = 0; done < count; done += WIDTH) {
      store(to + done, load_some(from + done, count - done));
    }
    return to + count;
  }

  const Layer& layer_;
  const Call& call_;
  const int64_t positions_, inputs_, blocks_;
  const int64_t panels_, tile_floats_;
  const bool is_matrix_;  // a row of the matrix is a position of the source
  float* packed_ = nullptr;
  int64_t first_ = 0, count_ = 0, group_ = 1, groups_ = 1;
};

}  // namespace brisk
