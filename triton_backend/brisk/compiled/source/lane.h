// Look-ups of learned caches, and the lane in which they are made beside the model's own run.
//
// The thread of a lane is no thread of Python: what is offered, made and noticed needs no interpreter's
// lock, which the model's thread would have to give up and get back.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "placement.h"
#include "small_network.h"
#include "verdict.h"

namespace brisk {

// `network` makes the logits of `rows` hidden outputs, `verdict` decides about them. Mirrored, field
// by field, by brisk/compiled/asked.py.
struct LookUp {
  Network* network;
  const Verdict* verdict;
  const float* hidden;
  float *logits, *scores;
  uint8_t* near;
  float threshold;  // a row of that score is answered
  int32_t rows, may_stop;
  std::atomic<int32_t> stops;  // 1: all rows are answered, and `may_stop`
  std::atomic<int32_t> is_done;
};

// Whether there is anything to say of a row: that it is answered, or far from what is known.
inline bool look_up(LookUp& asked) {
  void* inputs[] = {const_cast<float*>(asked.hidden)};
  void* outputs[] = {asked.logits};
  asked.network->run_alone(asked.rows, inputs, outputs);
  const Verdict& verdict = *asked.verdict;
  const int64_t floats = static_cast<int64_t>(verdict.height) * verdict.width * verdict.channels;
  int hits = 0, near = 0;
  for (int row = 0; row < asked.rows; ++row) {
    decide(verdict, asked.hidden + row * floats, asked.logits + row * verdict.classes,
           asked.scores + row, asked.near + row);
    hits += asked.scores[row] >= asked.threshold;
    near += asked.near[row];
  }
  asked.is_done.store(1, std::memory_order_release);
  if (asked.may_stop && hits == asked.rows) asked.stops.store(1, std::memory_order_release);
  return hits > 0 || near < asked.rows;
}

// Makes look-ups one at a time, in the order offered.
class Lane {
 public:
  Lane() : thread_(&Lane::work, this) {}

  // Ends the thread when it has made what it has taken on.
  ~Lane() {
    is_closed_.store(true, std::memory_order_seq_cst);
    ring();
    thread_.join();
  }

  // Whether it is taken on: one may wait while another one is made. `asked` and all that it names
  // have to stay where they are until it is done.
  bool offer(LookUp* asked) {
    LookUp* none = nullptr;
    if (!waiting_.compare_exchange_strong(none, asked, std::memory_order_seq_cst)) return false;
    placement_.part(1);
    ring();
    return true;
  }

 private:
  void work() {
    placement_.join(0);
    while (true) {
      const uint32_t heard = bell_.load(std::memory_order_seq_cst);
      if (LookUp* asked = waiting_.exchange(nullptr, std::memory_order_seq_cst)) {
        look_up(*asked);
      } else if (is_closed_.load(std::memory_order_seq_cst)) {
        return;
      } else {
        syscall(SYS_futex, &bell_, FUTEX_WAIT_PRIVATE, heard, nullptr, nullptr, 0);
      }
    }
  }

  void ring() {
    bell_.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &bell_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

  Placement placement_;
  std::atomic<LookUp*> waiting_{nullptr};
  std::atomic<bool> is_closed_{false};
  std::atomic<uint32_t> bell_{0};
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace brisk
