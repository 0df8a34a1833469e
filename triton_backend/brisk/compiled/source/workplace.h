// What a thread computes with: helpers and memory that layers use while they run.
//
// All threads share one workplace, by turns, but for those that take one of their own and then compute
// beside the others.
#pragma once
#include <cstdlib>
#include <mutex>
#include <new>

#include "placement.h"
#include "team.h"

namespace brisk {

class Workplace {
 public:
  // The calling thread's.
  static Workplace& here() { return *here_; }

  // Gives the calling thread one of its own, as long as the process lives. Throws std::bad_alloc.
  static Workplace* take() {
    here_ = new Workplace;
    here_->placement_.join(0);
    return here_;
  }

  // The thread that has taken it runs where the caller does not.
  void part() { placement_.part(1); }

  // Piece `number` (0 to 3), of at least `floats` floats with a vector's room behind them. For
  // whoever holds `turn`; contents last until the next call for the same piece.
  float* memory(int number, int64_t floats) {
    Piece& piece = pieces_[number];
    if (piece.floats < floats) {
      std::free(piece.memory);
      piece.floats = 0;
      const int64_t bytes = ((floats + 16) * 4 + 4095) / 4096 * 4096;
      piece.memory = static_cast<float*>(std::aligned_alloc(4096, bytes));
      if (!piece.memory) throw std::bad_alloc();
      piece.floats = floats;
    }
    return piece.memory;
  }

  Team team;
  std::mutex turn;  // held by whoever uses the team or the memory

 private:
  struct Piece {
    float* memory = nullptr;
    int64_t floats = 0;
  };

  static Workplace* shared() {
    static Workplace* everlasting = new Workplace;  // helpers may use it while the process ends
    return everlasting;
  }

  inline static thread_local Workplace* here_ = shared();
  Piece pieces_[4];
  Placement placement_;
};

inline Team& team() { return Workplace::here().team; }

inline std::mutex& turn() { return Workplace::here().turn; }

inline float* workspace(int number, int64_t floats) {
  return Workplace::here().memory(number, floats);
}

}  // namespace brisk
