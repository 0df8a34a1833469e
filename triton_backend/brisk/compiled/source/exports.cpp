// What Python calls: see brisk/compiled/library.py.
#include <exception>
#include <new>
#include <system_error>

#include "attention.h"
#include "lane.h"
#include "large_layer.h"
#include "normalisation.h"
#include "small_network.h"

namespace brisk {
namespace {

// Whoever computes one layer: 0, or 1 where there is no memory. The helpers stay awake a moment for
// the next one.
template <class F>
int compute_alone(int threads, F compute) {
  const std::lock_guard<std::mutex> held(turn());
  Team& crew = team();
  crew.begin(threads, Team::LINGER_NS);
  try {
    compute(crew);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace brisk

extern "C" {

// Size of a step's record, so that a table laid out otherwise is refused.
int brisk_step_bytes() { return sizeof(brisk::Step); }

// Floats that `brisk_network_pack` writes.
int64_t brisk_network_packed(const brisk::Step* steps, int count) {
  return brisk::packed_floats(steps, count);
}

// The steps' weights as kernels read them; `to` has zeros.
void brisk_network_pack(const brisk::Step* steps, int count, float* to) {
  brisk::pack(steps, count, to);
}

// A network of `count` steps with `floats` floats of scratch memory for each image that is reserved;
// null where there is no memory. Reads the steps' weights from `packed`, as `brisk_network_pack` wrote them, as long as it
// lives; where that is null it copies all it needs of those the steps point to.
void* brisk_network_new(const brisk::Step* steps, int count, int64_t floats, const float* packed) {
  try {
    return new brisk::Network(steps, count, floats, packed);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// Gives it scratch memory for up to `images` images, as every run needs it: 0, or 1 where there is
// none.
int brisk_network_reserve(void* network, int images) {
  try {
    static_cast<brisk::Network*>(network)->reserve(images);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

void brisk_network_delete(void* network) { delete static_cast<brisk::Network*>(network); }

// Makes the threads that runs may use, the caller's own included; fewer where there are no more.
void brisk_threads(int threads) {
  try {
    brisk::team().grow(threads - 1);
  } catch (const std::system_error&) {
  }
}

// A workplace of the calling thread's own, which computes beside all others from now on; null where
// there is no memory.
void* brisk_workplace_take() {
  try {
    return brisk::Workplace::take();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// The thread that has taken it runs where the caller does not.
void brisk_workplace_part(void* workplace) { static_cast<brisk::Workplace*>(workplace)->part(); }

// 0, or 1 where there is no memory.
int brisk_network_run(void* network, int images, int threads, void* const* inputs,
                      void* const* outputs) {
  try {
    static_cast<brisk::Network*>(network)->run(images, threads, inputs, outputs);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

int brisk_verdict_bytes() { return sizeof(brisk::Verdict); }

int brisk_look_up_bytes() { return sizeof(brisk::LookUp); }

// In the calling thread: whether it says anything of a row. Excludes no other computation but calls of
// the same network.
int brisk_look_up(brisk::LookUp* asked, const float* hidden, int rows, float threshold) {
  asked->hidden = hidden;
  asked->rows = rows;
  asked->threshold = threshold;
  return brisk::look_up(*asked);
}

// Null where there is no thread or no memory for it.
void* brisk_lane_new() {
  try {
    return new brisk::Lane;
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Waits until what it has taken on is made.
void brisk_lane_delete(void* lane) { delete static_cast<brisk::Lane*>(lane); }

int brisk_lane_offer(void* lane, brisk::LookUp* asked) {
  return static_cast<brisk::Lane*>(lane)->offer(asked);
}

// Runs of the calling thread end early where `asked` says that the model need not go on; null: none
// does any more. What such a run would have made is undefined.
void brisk_watch(const brisk::LookUp* asked) { brisk::watched = asked ? &asked->stops : nullptr; }

// Outputs of a panel, and inputs of a block.
int brisk_panel() { return brisk::PANEL; }
int brisk_block() { return brisk::WIDTH; }

int brisk_layer_bytes() { return sizeof(brisk::Layer); }

int brisk_layer_run(const brisk::Layer* layer, int threads, int images, int height, int width,
                    int out_height, int out_width, const float* source, const float* second,
                    float* target) {
  const brisk::Call call{images, height, width, out_height, out_width, 0, source, second, target};
  return brisk::compute_alone(threads, [&](brisk::Team& team) {
    brisk::run_call(*layer, call, team, threads);
  });
}

int brisk_attention_bytes() { return sizeof(brisk::Attention); }

// `mask` may be null.
int brisk_attention_run(const brisk::Attention* shape, int threads, const float* query,
                        const float* key, const float* value, const float* mask, float* target) {
  return brisk::compute_alone(threads, [&](brisk::Team& team) {
    brisk::Attending(*shape, query, key, value, mask, target).run(team, threads);
  });
}

// `bias` may be null.
int brisk_rows_normalise(int threads, int64_t rows, int64_t width, float epsilon,
                         const float* scale, const float* bias, const float* source,
                         float* target) {
  return brisk::compute_alone(threads, [&](brisk::Team& team) {
    brisk::Normalising{rows, width, epsilon, scale, bias, source, target}.run(team);
  });
}
}
