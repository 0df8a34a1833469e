// A network of small layers as one call: steps over tensors that lie in one piece of memory.
//
// Feature maps lie channels-last, with a border of zeros where a convolution reads beyond their
// edge. Callers of one network wait for each other.
#pragma once
#include <atomic>
#include <mutex>

#include "depthwise.h"
#include "large_layer.h"
#include "operators.h"
#include "prepared.h"
#include "workplace.h"

namespace brisk {

constexpr int POSITIONS = 64;  // of one chunk at most: their pointers lie on the stack

// Where not null, a run of this thread ends behind the step during which it has become 1: what it
// would have made is not needed any more.
inline thread_local const std::atomic<int32_t>* watched = nullptr;

inline int64_t packed_floats(const Step* steps, int count) {
  int64_t floats = 0;
  for (int i = 0; i < count; ++i) floats += packed_floats(steps[i]);
  return floats;
}

// All steps' weights, one behind the other. `to` has zeros.
inline void pack(const Step* steps, int count, float* to) {
  for (int i = 0; i < count; to += packed_floats(steps[i++])) pack(steps[i], to);
}

class Network {
 public:
  // `packed`: the steps' weights as `pack` makes them, which outlive the network; null: to be made
  // of the steps', but for those of a LAYER, which are as it wants them and outlive the network.
  Network(const Step* steps, int count, int64_t floats, const float* packed)
      : floats_(floats) {
    prepared_.resize(count);
    for (int i = 0; i < count; ++i) prepared_[i].step = steps[i];
    if (packed) {
      adopt(packed);
    } else {
      own(steps, count);
    }
  }

  void reserve(int images) {
    const std::lock_guard<std::mutex> alone(busy_);
    if (images <= room_) return;
    scratch_ = zeros(floats_ * images);
    room_ = images;
  }

  // Precondition of runs: their images are reserved. Throws std::bad_alloc.
  void run(int images, int threads, void* const* inputs, void* const* outputs) {
    const std::lock_guard<std::mutex> alone(busy_), held(turn());
    if (!take(images, inputs, outputs)) return;
    const Crew crew(threads);
    const std::atomic<int32_t>* stops = watched;
    for (Prepared& prepared : prepared_) {
      run_step(prepared, crew.threads);
      if (stops && stops->load(std::memory_order_relaxed)) break;
    }
  }

  // In the calling thread alone, beside whatever else computes. Precondition: no step is a LAYER.
  void run_alone(int images, void* const* inputs, void* const* outputs) {
    const std::lock_guard<std::mutex> alone(busy_);
    if (!take(images, inputs, outputs)) return;
    for (Prepared& prepared : prepared_) run_step(prepared, 1);
  }

 private:
  // The team for a run.
  struct Crew {
    explicit Crew(int wanted) : threads(team().begin_run(wanted)) {}
    ~Crew() { team().end_run(threads); }
    const int threads;
  };

  void adopt(const float* packed) {
    for (Prepared& made : prepared_) {
      prepare(made, packed, packed + weight_floats(made.step));
      packed += packed_floats(made.step);
    }
  }

  void own(const Step* steps, int count) {
    int64_t floats = 0;
    for (int i = 0; i < count; ++i) floats += steps[i].kind == LAYER ? 0 : packed_floats(steps[i]);
    own_ = zeros(floats);
    float* packed = own_.get();
    for (Prepared& made : prepared_) {
      const Step& step = made.step;
      if (step.kind == LAYER) {
        prepare(made, step.weights, step.bias);
        continue;
      }
      pack(step, packed);
      prepare(made, packed, packed + weight_floats(step));
      packed += packed_floats(step);
    }
  }

  bool take(int images, void* const* inputs, void* const* outputs) {
    images_ = images;
    inputs_ = inputs;
    outputs_ = outputs;
    return images > 0;
  }

  float* memory(const Tensor& tensor) const {
    float* base = scratch_.get();
    if (tensor.place == INPUT) base = static_cast<float*>(inputs_[tensor.index]);
    if (tensor.place == OUTPUT) base = static_cast<float*>(outputs_[tensor.index]);
    return base + tensor.offset;
  }

  void run_step(Prepared& prepared, int threads) {
    const Step& step = prepared.step;
    if (step.kind == CONVOLUTION) return run_convolution(prepared.convolution, threads);
    if (step.kind == DEPTHWISE) return run_depthwise(prepared, threads);
    if (step.kind == LAYER) return run_layer(prepared, threads);
    const bool is_wide = step.kind == ARGUMENT_MAXIMUM;  // its results take two floats' room
    for (int image = 0; image < images_; ++image) {
      const float* source = memory(step.source) + image * step.source.image;
      const float* second = nullptr;
      if (step.has_second) second = memory(step.second) + image * step.second.image;
      float* target = memory(step.target) + image * step.target.image * (is_wide ? 2 : 1);
      switch (step.kind) {
        case COPY: copy(step, source, target); break;
        case POINTWISE: pointwise(step, source, second, target); break;
        case GATE: gate(step, source, second, target); break;
        case SOFTMAX: softmax(step, source, target); break;
        case ARGUMENT_MAXIMUM: argument_maximum(step, source, target); break;
        case ADAPTIVE_POOL: adaptive_pool(step, source, target); break;
        default: pool(step, source, target);
      }
    }
  }

  // Image by image: they lie apart in scratch memory.
  void run_layer(const Prepared& prepared, int threads) {
    const Step& step = prepared.step;
    const Tensor &from = step.source, &to = step.target;
    for (int image = 0; image < images_; ++image) {
      const float* second = nullptr;
      if (step.has_second) second = memory(step.second) + image * step.second.image;
      const Call call{1, from.height, from.width, to.height, to.width, 0,
                      memory(from) + image * from.image, second, memory(to) + image * to.image};
      run_call(prepared.layer, call, team(), threads);
    }
  }

  struct Rows {
    const Network* network;
    const Prepared* prepared;
  };

  void run_depthwise(const Prepared& prepared, int threads) {
    const Step& step = prepared.step;
    const int chunks = step.target.height * images_;
    const int64_t products = static_cast<int64_t>(chunks) * step.target.width *
                             step.target.channels * step.kernel[0] * step.kernel[1];
    Rows rows{this, &prepared};
    if (threads > 1 && products >= LEAST_SHARED && chunks <= Team::MOST_CHUNKS) {
      team().share(compute_row, &rows, chunks);
    } else {
      for (int chunk = 0; chunk < chunks; ++chunk) compute_row(&rows, chunk);
    }
  }

  static void compute_row(void* context, int chunk) {
    const Rows& rows = *static_cast<Rows*>(context);
    const Step& step = rows.prepared->step;
    const int image = chunk / step.target.height;
    const float* second = nullptr;
    if (step.has_second) second = rows.network->memory(step.second) + image * step.second.image;
    depthwise_row(step, rows.prepared->weights, rows.prepared->bias,
                  rows.network->memory(step.source) + image * step.source.image, second,
                  rows.network->memory(step.target) + image * step.target.image,
                  chunk % step.target.height);
  }

  struct Shared {
    const Network* network;
    const Convolution* work;
    int positions, per_chunk, panels;
  };

  void run_convolution(const Convolution& work, int threads) {
    const Tensor& to = work.step->target;
    const int positions = to.height * to.width * images_;
    const int panels = (work.channels + PANEL - 1) / PANEL;
    const int64_t products = static_cast<int64_t>(positions) * panels * PANEL * work.taps * work.run;
    Shared shared{this, &work, positions, std::min(POSITIONS, positions), panels};
    const int chunks = (positions + shared.per_chunk - 1) / shared.per_chunk * panels;
    if (threads > 1 && products >= LEAST_SHARED && chunks <= Team::MOST_CHUNKS) {
      team().share(compute_chunk, &shared, chunks);
    } else {
      for (int chunk = 0; chunk < chunks; ++chunk) compute_chunk(&shared, chunk);
    }
  }

  // Chunks count panels first, so that a chunk's weights are its neighbours', too.
  static void compute_chunk(void* context, int chunk) {
    const Shared& shared = *static_cast<Shared*>(context);
    const Step& step = *shared.work->step;
    const Tensor &from = step.source, &to = step.target, &with = step.second;
    const int parts = (shared.positions + shared.per_chunk - 1) / shared.per_chunk;
    const int begin = chunk % parts * shared.per_chunk;
    const int count = std::min(shared.per_chunk, shared.positions - begin);
    float *source = shared.network->memory(from), *target = shared.network->memory(to);
    float* second = step.has_second ? shared.network->memory(with) : nullptr;
    const float *sources[POSITIONS], *seconds[POSITIONS];
    float* targets[POSITIONS];
    int column = begin % to.width, row = begin / to.width % to.height;
    int image = begin / to.width / to.height;
    for (int i = 0; i < count; ++i) {
      sources[i] = source + image * from.image +
                   (row * step.stride[0] - step.before[0]) * from.row +
                   (column * step.stride[1] - step.before[1]) * from.column;
      targets[i] = target + image * to.image + row * to.row + column * to.column;
      if (second) seconds[i] = second + image * with.image + row * with.row + column * with.column;
      if (++column < to.width) continue;
      column = 0;
      if (++row < to.height) continue;
      row = 0;
      ++image;
    }
    compute_positions(*shared.work, chunk / parts * PANEL, count, sources, targets,
                      second ? seconds : nullptr);
  }

  std::vector<Prepared> prepared_;
  Memory own_, scratch_;
  const int64_t floats_;  // of scratch memory for an image
  int room_ = 0;          // images that there is scratch memory for
  std::mutex busy_;  // held while it runs: scratch memory and what follows are one caller's
  int images_ = 0;
  void* const* inputs_ = nullptr;
  void* const* outputs_ = nullptr;
};

}  // namespace brisk
