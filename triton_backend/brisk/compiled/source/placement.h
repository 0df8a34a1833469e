// Where helping threads run: never on the processor of the thread that they help.
//
// Linux wakes a thread where it last ran or where its waker runs, and looks for no idle processor when
// both have been busy for more than some 60 % of the time: it would wait there behind its caller,
// beside an idle processor.
#pragma once
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace brisk {

class Placement {
 public:
  static constexpr int MOST_HELPERS = 255;

  // The calling thread is helper number `index`, from 0, and is to be placed, too.
  void join(int index) {
    threads_[index].store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_relaxed);
    parted_from_.store(-1, std::memory_order_relaxed);
  }

  // The first `count` helpers may use whatever the caller may, but for the processor on which it is.
  void part(int count) {
    const int here = sched_getcpu();
    if (here == parted_from_.load(std::memory_order_relaxed) || here < 0 || here >= CPU_SETSIZE) return;
    cpu_set_t others;
    if (sched_getaffinity(0, sizeof others, &others)) return;
    CPU_CLR(here, &others);
    place(others, here, count);
  }

  // They may use the caller's processor alone, so that they get turns there.
  void gather(int count) {
    const int here = sched_getcpu();
    cpu_set_t only;
    CPU_ZERO(&only);
    if (here >= 0 && here < CPU_SETSIZE) CPU_SET(here, &only);
    place(only, -1, count);
  }

 private:
  // No set without processors is taken, nor one that the process may not use: then all stays.
  void place(const cpu_set_t& processors, int parted_from, int count) {
    parted_from_.store(parted_from, std::memory_order_relaxed);
    for (int i = 0; i < count; ++i) {
      const int thread = threads_[i].load(std::memory_order_relaxed);
      if (thread) sched_setaffinity(thread, sizeof processors, &processors);
    }
  }

  std::atomic<int> parted_from_{-1};
  std::atomic<int> threads_[MOST_HELPERS] = {};  // as the kernel numbers them; 0: not running yet
};

}  // namespace brisk
