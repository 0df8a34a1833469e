// Depthwise convolutions: a block of positions of a row at a time, whose sums stay in registers while
// each tap's weights are read once for all of them.
#pragma once
#include <algorithm>

#include "layer.h"
#include "operators.h"
#include "team.h"

namespace brisk {

constexpr int COLUMNS = ROWS;  // of a block: as many sums as registers leave room for
constexpr int MOST_TAPS = 128;  // their places lie on the stack
constexpr int64_t LEAST_SHARED = 100'000;  // multiplications; fewer are not worth a second thread

struct DepthwiseTaps {
  int count;
  const float* weights[MOST_TAPS];
  const float* places[MOST_TAPS * COLUMNS];  // of the block's positions, tap by tap
};

// Channels from `c` on, `left` of them; a whole vector where `left` is not known to be fewer.
template <int COUNT, bool WHOLE>
inline void depthwise_vector(const Step& step, const DepthwiseTaps& taps, const float* bias, int c,
                             int left, const float* other, float* out) {
  Vector sums[COUNT], made[COUNT];
#pragma GCC unroll 8
  for (int i = 0; i < COUNT; ++i) sums[i] = load(bias + c);
  for (int tap = 0; tap < taps.count; ++tap) {
    const Vector weight = load(taps.weights[tap] + c);
    const float* const* places = taps.places + tap * COUNT;
#pragma GCC unroll 8
    for (int i = 0; i < COUNT; ++i) {
      sums[i] += (WHOLE ? load(places[i] + c) : load_some(places[i] + c, left)) * weight;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < COUNT; ++i) made[i] = sums[i];
  for (int i = 0; i < COUNT; ++i) {
    Vector value = made[i];
    if (other) value += load_some(other + i * step.second.column + c, left);
    store_some(out + i * step.target.column + c, activate(value, step), left);
  }
}

template <int COUNT>
inline void depthwise_block(const Step& step, const DepthwiseTaps& taps, const float* bias,
                            const float* other, float* out) {
  const int channels = step.target.channels;
  int c = 0;
  for (; c + WIDTH <= channels; c += WIDTH) {
    depthwise_vector<COUNT, true>(step, taps, bias, c, WIDTH, other, out);
  }
  if (c < channels) {
    depthwise_vector<COUNT, false>(step, taps, bias, c, channels - c, other, out);
  }
}

// The taps of `count` positions from (row, column) on; what lies outside of the source is read at
// `nothing`, zeros for every channel.
inline void find_taps(const Step& step, const float* weights, const float* source,
                      const float* nothing, int row, int column, int count, DepthwiseTaps& found) {
  const Tensor& from = step.source;
  const int padded = (from.channels + WIDTH - 1) / WIDTH * WIDTH;
  found.count = 0;
  for (int y = 0; y < step.kernel[0]; ++y) {
    const int from_row = row * step.stride[0] - step.before[0] + y * step.dilation[0];
    if (from_row < 0 || from_row >= from.height) continue;
    for (int x = 0; x < step.kernel[1]; ++x) {
      const float** places = found.places + found.count * count;
      bool is_read = false;
      for (int i = 0; i < count; ++i) {
        const int place = (column + i) * step.stride[1] - step.before[1] + x * step.dilation[1];
        const bool is_inside = place >= 0 && place < from.width;
        places[i] = is_inside ? source + from_row * from.row + place * from.column : nothing;
        is_read |= is_inside;
      }
      if (is_read) found.weights[found.count++] = weights + (y * step.kernel[1] + x) * padded;
    }
  }
}

// Row `row` of the target. `weights`: by tap, then channel, padded to whole vectors, and one tap of
// zeros behind them; `bias` padded likewise.
inline void depthwise_row(const Step& step, const float* weights, const float* bias,
                          const float* source, const float* second, float* target, int row) {
  const Tensor &to = step.target, &with = step.second;
  const int padded = (to.channels + WIDTH - 1) / WIDTH * WIDTH;
  const float* nothing = weights + step.kernel[0] * step.kernel[1] * padded;
  const int blocks = (to.width + COLUMNS - 1) / COLUMNS;
  const int wide = (to.width + blocks - 1) / blocks;
  DepthwiseTaps taps;
  for (int column = 0; column < to.width; column += wide) {
    const int count = std::min(wide, to.width - column);
    find_taps(step, weights, source, nothing, row, column, count, taps);
    const float* other = second ? second + row * with.row + column * with.column : nullptr;
    float* out = at(to, target, row, column);
    switch (count) {
      case 8: depthwise_block<8>(step, taps, bias, other, out); break;
      case 7: depthwise_block<7>(step, taps, bias, other, out); break;
      case 6: depthwise_block<6>(step, taps, bias, other, out); break;
      case 5: depthwise_block<5>(step, taps, bias, other, out); break;
      case 4: depthwise_block<4>(step, taps, bias, other, out); break;
      case 3: depthwise_block<3>(step, taps, bias, other, out); break;
      case 2: depthwise_block<2>(step, taps, bias, other, out); break;
      default: depthwise_block<1>(step, taps, bias, other, out);
    }
  }
}

// One layer of its own, rows of its result shared among threads.
class Depthwise {
 public:
  Depthwise(const Layer& layer, const Call& call) : layer_(layer), call_(call) {
    step_.activation = layer.activation;
    step_.alpha = layer.alpha;
    step_.beta = layer.beta;
    step_.source = map(call.height, call.width);
    step_.second = step_.target = map(call.out_height, call.out_width);
    std::copy_n(layer.kernel, 2, step_.kernel);
    std::copy_n(layer.stride, 2, step_.stride);
    std::copy_n(layer.dilation, 2, step_.dilation);
    std::copy_n(layer.before, 2, step_.before);
  }

  void run(Team& team) {
    const int rows = call_.images * call_.out_height;
    const int64_t products =
        int64_t{rows} * step_.target.row * layer_.kernel[0] * layer_.kernel[1];
    per_chunk_ = products < LEAST_SHARED ? rows : rows / Team::MOST_CHUNKS + 1;
    team.share([](void* self, int chunk) { static_cast<Depthwise*>(self)->compute(chunk); }, this,
               (rows + per_chunk_ - 1) / per_chunk_);
  }

 private:
  Tensor map(int height, int width) const {
    const int64_t channels = layer_.channels;
    Tensor made{};
    made.image = height * width * channels;
    made.row = width * channels;
    made.column = channels;
    made.channel = 1;
    made.height = height;
    made.width = width;
    made.channels = layer_.channels;
    return made;
  }

  void compute(int chunk) const {
    const int end = std::min((chunk + 1) * per_chunk_, call_.images * call_.out_height);
    for (int row = chunk * per_chunk_; row < end; ++row) {
      const int64_t image = row / call_.out_height, result = image * step_.target.image;
      depthwise_row(step_, layer_.weights, layer_.bias, call_.source + image * step_.source.image,
                    call_.second ? call_.second + result : nullptr, call_.target + result,
                    row % call_.out_height);
    }
  }

  const Layer& layer_;
  const Call& call_;
  Step step_{};
  int per_chunk_ = 1;
};

}  // namespace brisk
