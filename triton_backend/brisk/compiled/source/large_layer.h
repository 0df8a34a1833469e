// A layer by the kernel of its unit.
#pragma once
#include "depthwise.h"
#include "winograd.h"

namespace brisk {

// For whoever holds the workplace's turn. Throws std::bad_alloc.
inline void run_call(const Layer& layer, const Call& call, Team& team, int threads) {
  if (layer.unit == 2) {
    Winograd<2>(layer, call).run(team, threads);
  } else if (layer.unit == 4) {
    Winograd<4>(layer, call).run(team, threads);
  } else if (layer.unit == BY_CHANNEL) {
    Depthwise(layer, call).run(team);
  } else {
    Direct(layer, call).run(team, threads);
  }
}

}  // namespace brisk
