// The calling thread and its helpers share the chunks of one step after the other.
//
// Helpers sleep between runs that are apart in time. Within a run they spin between steps, for a given
// time at most; behind a run, too, where runs follow each other at once and nobody else wants their
// processors. The caller takes chunks from the front, helpers from the back, so that each finds much
// of the weights that it had in the run before in its own cache. A chunk is claimed by a
// compare-and-swap on (serial, end, begin): nobody can claim a chunk of a step that is over, and the
// caller never waits for a helper that has not begun, only for chunks that are being computed. While
// a claim can succeed the caller is inside `share`, so what the claimer reads afterwards is this
// step's.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "placement.h"

namespace brisk {

class Team {
 public:
  static constexpr int64_t SPIN_NS = 50'000;    // between the steps of a network
  static constexpr int64_t LINGER_NS = 25'000;  // behind a layer, for the next one
  static constexpr int64_t PAUSE_NS = 100'000;  // between runs that follow each other at once
  static constexpr int64_t LOST_NS = 150'000;   // not seen by a spinning helper: it was displaced
  static constexpr int64_t STARVED_NS = 1'000'000;   // without a chunk's end, all others being done
  static constexpr int64_t CROWDED_NS = 20'000'000;  // that a displaced helper's place counts as taken
  static constexpr int SPINS = 1000;  // of the caller, before it lets other processes run
  static constexpr int MOST_CHUNKS = 0xffff;

  using Work = void (*)(void* context, int chunk);

  // Makes `helpers` threads; they live as long as the process.
  void grow(int helpers) {
    helpers = std::min(helpers, Placement::MOST_HELPERS);
    for (; made_ < helpers; ++made_) std::thread(&Team::help, this, made_ + 1).detach();
  }

  // Number of the calling thread: 0 for callers, helpers count from 1.
  static int number() { return number_; }

  // Threads there may be, the caller's own included.
  int size() const { return made_ + 1; }

  // Wakes the helpers for a run on `threads` threads, or on one where others have their processors.
  // They sleep after `spin_ns` without work.
  void begin(int threads, int64_t spin_ns) {
    if (threads > 1 && starved_until_ && now_ns() < starved_until_) threads = 1;
    spin_ns_.store(spin_ns, std::memory_order_relaxed);
    wanted_.store(threads - 1, std::memory_order_relaxed);
    if (threads < 2) return;
    placement_.part(made_);
    awake_.store(awake_.load(std::memory_order_relaxed) | 1, std::memory_order_seq_cst);
    wake();
  }

  // The same for a run that `end` follows; threads that it may use. One where helpers have lost their
  // processors to others of late: such a run is over before they would come back.
  int begin_run(int threads) {
    if (threads < 2) return threads;
    const int64_t now = now_ns();
    if (now < std::max(crowded_until_.load(std::memory_order_relaxed), starved_until_)) return 1;
    is_steady_ = now - ended_ < PAUSE_NS;
    begin(threads, is_steady_ ? PAUSE_NS : SPIN_NS);
    return threads;
  }

  // Lets the helpers sleep again, unless this run has followed the one before at once.
  void end_run(int threads) {
    if (threads < 2) return;
    ended_ = now_ns();
    if (is_steady_) return;
    awake_.store((awake_.load(std::memory_order_relaxed) + 2) & ~1u, std::memory_order_seq_cst);
  }

  // Calls work(context, chunk) for each of `count` chunks on whichever thread is free, more than
  // MOST_CHUNKS on the caller's. Returns when all are done.
  void share(Work work, void* context, int count) {
    if (count < 2 || count > MOST_CHUNKS || wanted_.load(std::memory_order_relaxed) < 1) {
      for (int chunk = 0; chunk < count; ++chunk) work(context, chunk);
      return;
    }
    work_ = work;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    is_sharing_.store(true, std::memory_order_relaxed);
    const uint64_t serial = (state_.load(std::memory_order_relaxed) >> 32) + 1;
    state_.store(serial << 32 | static_cast<uint64_t>(count) << 16, std::memory_order_seq_cst);
    wake();
    take_chunks(serial, true);
    for (int turns = 0; done_.load(std::memory_order_acquire) < count; ++turns) {
      if (turns < SPINS) {
        pause();
      } else {
        await(count);
      }
    }
    is_sharing_.store(false, std::memory_order_relaxed);
  }

 private:
  // Computes chunks of step `serial` until none is left.
  void take_chunks(uint64_t serial, bool from_front) {
    uint64_t seen = state_.load(std::memory_order_acquire);
    while (seen >> 32 == serial) {
      const int begin = seen & 0xffff, end = seen >> 16 & 0xffff;
      if (begin >= end) return;
      const uint64_t claimed = from_front ? seen + 1 : seen - 0x10000;
      if (state_.compare_exchange_weak(seen, claimed, std::memory_order_acq_rel)) {
        work_(context_, from_front ? begin : end - 1);
        done_.fetch_add(1, std::memory_order_release);
        seen = state_.load(std::memory_order_acquire);
      }
    }
  }

  // Lets other processes run until all chunks are done. A helper that does not get on with its own,
  // since others have its processor, gets turns on the caller's.
  void await(int count) {
    const int64_t since = now_ns();
    while (done_.load(std::memory_order_acquire) < count) {
      std::this_thread::yield();
      const int64_t now = now_ns();
      if (now - since < STARVED_NS || now < starved_until_) continue;
      starved_until_ = now + CROWDED_NS;
      placement_.gather(made_);
    }
  }

  void help(int number) {
    number_ = number;
    placement_.join(number - 1);
    uint64_t last = 0;
    while (true) {
      const uint32_t turn = awake_.load(std::memory_order_seq_cst);
      if (!(turn & 1) || number > wanted_.load(std::memory_order_relaxed)) {
        sleep(turn);
        continue;
      }
      int64_t now = now_ns();
      int64_t until = now + spin_ns_.load(std::memory_order_relaxed);
      while (awake_.load(std::memory_order_acquire) == turn) {
        const uint64_t serial = state_.load(std::memory_order_acquire) >> 32;
        if (serial != last) {
          take_chunks(serial, false);
          last = serial;
          break;
        }
        const int64_t before = now;
        now = now_ns();
        if (now - before > LOST_NS) crowded_until_.store(now + CROWDED_NS, std::memory_order_relaxed);
        if (is_sharing_.load(std::memory_order_relaxed)) {
          until = now + spin_ns_.load(std::memory_order_relaxed);
        } else if (now > until) {
          sleep(turn);
          break;
        }
        pause();
      }
    }
  }

  // Whoever sleeps, be it that the run has just begun or that a step took longer than they spin.
  void wake() {
    if (sleeping_.load(std::memory_order_seq_cst)) {
      syscall(SYS_futex, &awake_, FUTEX_WAKE_PRIVATE, made_, nullptr, nullptr, 0);
    }
  }

  // Until `awake_` is another than `turn`, or somebody wakes all.
  void sleep(uint32_t turn) {
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &awake_, FUTEX_WAIT_PRIVATE, turn, nullptr, nullptr, 0);
    sleeping_.fetch_sub(1, std::memory_order_seq_cst);
  }

  static int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  inline static thread_local int number_ = 0;
  int made_ = 0;
  bool is_steady_ = false;
  int64_t ended_ = 0, starved_until_ = 0;
  Work work_ = nullptr;
  void* context_ = nullptr;
  std::atomic<int64_t> spin_ns_{SPIN_NS}, crowded_until_{0};
  std::atomic<int> wanted_{0}, sleeping_{0}, done_{0};
  std::atomic<bool> is_sharing_{false};
  Placement placement_;
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<uint32_t> awake_{0};  // odd while a run is in progress
};

}  // namespace brisk
