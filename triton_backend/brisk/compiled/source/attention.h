// Scaled dot-product attention: softmax(scale * query * key^T + mask) * value, head by head.
//
// The scores of a tile of queries are computed, made shares and multiplied with the values while they
// are in the cache. Rows whose every key is masked with minus infinity are zero.
#pragma once
#include "blocks.h"
#include "team.h"
#include "workplace.h"

namespace brisk {

// Mirrored, field by field, by brisk/compiled/layer.py. Strides in floats, of batch, head and row;
// numbers of a row lie side by side. The mask's last stride, of keys, is 0 or 1.
struct Attention {
  int32_t batch, heads, queries, keys, width, value_width;
  float scale;
  int32_t padding;
  int64_t query[3], key[3], value[3], target[3], mask[4];
};

// Of `count` floats as a vector, `rest` behind them.
inline Vector load_or(const float* from, int count, float rest) {
  if (count >= WIDTH) return load(from);
  Vector value = all(rest);
  for (int i = 0; i < count; ++i) value[i] = from[i];
  return value;
}

class Attending {
 public:
  Attending(const Attention& shape, const float* query, const float* key, const float* value,
            const float* mask, float* target)
      : shape_(shape),
        query_(query),
        key_(key),
        value_(value),
        mask_(mask),
        target_(target),
        width_blocks_(divided_up(shape.width, WIDTH)),
        key_panels_(divided_up(shape.keys, PANEL)),
        key_blocks_(divided_up(shape.keys, WIDTH)),
        value_panels_(divided_up(shape.value_width, PANEL)) {}

  // A chunk is a head, or some of its queries where there are few heads.
  void run(Team& team, int threads) {
    const int64_t heads = static_cast<int64_t>(shape_.batch) * shape_.heads;
    const int64_t tiles = divided_up(shape_.queries, TILE);
    const int64_t wanted = divided_up(CHUNKS_A_THREAD * threads, heads);
    part_ = std::max(divided_up(tiles, wanted), std::min(tiles, FEWEST_TILES));
    parts_ = divided_up(tiles, part_);
    packed_keys_ = 0;
    packed_values_ = packed_keys_ + key_panels_ * PANEL * width_blocks_ * WIDTH;
    tile_ = packed_values_ + value_panels_ * PANEL * key_blocks_ * WIDTH;
    scores_ = tile_ + TILE * width_blocks_ * WIDTH;
    shares_ = scores_ + TILE * key_panels_ * PANEL;
    results_ = shares_ + TILE * key_blocks_ * WIDTH;
    const int64_t floats = results_ + TILE * PANEL;
    memory_ = workspace(3, floats * team.size());
    stride_ = floats;
    team.share([](void* self, int chunk) { static_cast<Attending*>(self)->attend(chunk); }, this,
               heads * parts_);
  }

 private:
  static constexpr int64_t CHUNKS_A_THREAD = 4, FEWEST_TILES = 4;

  void attend(int chunk) {
    float* memory = memory_ + stride_ * Team::number();
    const int64_t head = chunk / parts_ % shape_.heads, batch = chunk / parts_ / shape_.heads;
    pack_keys(key_ + batch * shape_.key[0] + head * shape_.key[1], memory + packed_keys_);
    pack_values(value_ + batch * shape_.value[0] + head * shape_.value[1], memory + packed_values_);
    const int64_t begin = chunk % parts_ * part_ * TILE;
    const int64_t end = std::min<int64_t>(begin + part_ * TILE, shape_.queries);
    for (int64_t row = begin; row < end; row += TILE) {
      attend_tile(memory, batch, head, row, std::min<int64_t>(TILE, end - row));
    }
  }

  // Panels of PANEL keys, for each column of the keys one line; zeros where there is nothing.
  void pack_keys(const float* from, float* to) const {
    const int64_t lines = width_blocks_ * WIDTH;
    for (int64_t panel = 0; panel < key_panels_; ++panel, to += lines * PANEL) {
      const int64_t first = panel * PANEL, count = std::min<int64_t>(PANEL, shape_.keys - first);
      if (count < PANEL || shape_.width < lines) std::fill_n(to, lines * PANEL, 0.0f);
      for (int64_t i = 0; i < count; ++i) {
        const float* key = from + (first + i) * shape_.key[2];
        for (int column = 0; column < shape_.width; ++column) to[column * PANEL + i] = key[column];
      }
    }
  }

  // Panels of PANEL columns, for each value one line.
  void pack_values(const float* from, float* to) const {
    for (int64_t panel = 0; panel < value_panels_; ++panel) {
      const int columns = shape_.value_width - panel * PANEL;
      for (int64_t i = 0; i < key_blocks_ * WIDTH; ++i, to += PANEL) {
        const bool is_there = i < shape_.keys;
        const float* line = from + i * shape_.value[2] + panel * PANEL;
        store(to, is_there ? load_some(line, columns) : Vector{});
        const bool is_wide = is_there && columns > WIDTH;
        store(to + WIDTH, is_wide ? load_some(line + WIDTH, columns - WIDTH) : Vector{});
      }
    }
  }

  void attend_tile(float* memory, int64_t batch, int64_t head, int64_t row, int count) const {
    const int rows = packed_rows(count);
    const float* query = query_ + batch * shape_.query[0] + head * shape_.query[1] + row * shape_.query[2];
    float *tile = memory + tile_, *scores = memory + scores_, *shares = memory + shares_;
    for (int64_t block = 0; block < width_blocks_; ++block) {
      for (int r = 0; r < rows; ++r) {
        Vector value = {};
        const int columns = shape_.width - block * WIDTH;
        if (r < count) value = load_some(query + r * shape_.query[2] + block * WIDTH, columns);
        store(tile + (block * rows + r) * WIDTH, value * shape_.scale);
      }
    }
    const int64_t line = key_panels_ * PANEL, lines = width_blocks_ * WIDTH;
    for (int64_t panel = 0; panel < key_panels_; ++panel) {
      const float* keys = memory + packed_keys_ + panel * lines * PANEL;
      multiply_tile(rows, shape_.keys - panel * PANEL, tile, keys, width_blocks_,
                    scores + panel * PANEL, line, false, {keys, 0});
    }
    const float* mask = nullptr;
    if (mask_) mask = mask_ + batch * shape_.mask[0] + head * shape_.mask[1] + row * shape_.mask[2];
    float factors[TILE];
    for (int r = 0; r < rows; ++r) {
      const float* own = mask ? mask + r * shape_.mask[2] : nullptr;
      if (r < count) factors[r] = share(scores + r * line, own, shares + r * WIDTH, rows * WIDTH);
      for (int64_t block = 0; r >= count && block < key_blocks_; ++block) {
        store(shares + (block * rows + r) * WIDTH, Vector{});
      }
    }
    float *results = memory + results_;
    float* target = target_ + batch * shape_.target[0] + head * shape_.target[1] + row * shape_.target[2];
    for (int64_t panel = 0; panel < value_panels_; ++panel, target += PANEL) {
      const float* values = memory + packed_values_ + panel * key_blocks_ * WIDTH * PANEL;
      const int columns = std::min<int64_t>(PANEL, shape_.value_width - panel * PANEL);
      multiply_tile(rows, columns, shares, values, key_blocks_, results, PANEL, false, {values, 0});
      for (int r = 0; r < count; ++r) {
        for (int v = 0; v < columns; v += WIDTH) {
          store_some(target + r * shape_.target[2] + v,
                     load(results + r * PANEL + v) * factors[r], columns - v);
        }
      }
    }
  }

  // Puts exp(score - greatest) in blocks `stride` apart; what they have to be multiplied by.
  float share(float* scores, const float* mask, float* shares, int64_t stride) const {
    Vector greatest = all(-INFINITY), sum = {};
    for (int key = 0; key < shape_.keys; key += WIDTH) {
      const int count = shape_.keys - key;
      Vector score = load_or(scores + key, count, -INFINITY);
      if (mask) score += shape_.mask[3] ? load_some(mask + key, count) : all(*mask);
      store(scores + key, score);
      greatest = greater_one(score, greatest);
    }
    const float highest = greatest_of(greatest), from = highest == -INFINITY ? 0.0f : highest;
    for (int key = 0; key < shape_.keys; key += WIDTH, shares += stride) {
      const Vector value = falling_exponential(load(scores + key) - from);
      store(shares, value);
      sum += value;
    }
    const float total = sum_of(sum);
    return total == 0.0f ? 0.0f : 1.0f / total;
  }

  const Attention& shape_;
  const float *query_, *key_, *value_, *mask_;
  float* target_;
  const int64_t width_blocks_, key_panels_, key_blocks_, value_panels_;
  float* memory_ = nullptr;
  int64_t stride_ = 0, part_ = 1, parts_ = 1;  // tiles of queries
  int64_t packed_keys_ = 0, packed_values_ = 0, tile_ = 0, scores_ = 0, shares_ = 0, results_ = 0;
};

}  // namespace brisk
