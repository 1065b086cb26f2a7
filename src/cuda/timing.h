// How long queued work takes on a GPU: in a burst, at the highest clock, and back to back, when the
// board has reached its power limit and lowered it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

#include "cuda/board.h"

namespace halfbyte {

struct Timing {
  double burst = 0;      // seconds a call: median of bursts of at least 3 ms, each after a pause
  double sustained = 0;  // seconds a call: median over the later half of the time asked for
  BoardState board;      // during that half
};

struct TimingOptions {
  int cycle = 1;                 // so many calls, one after the other, are repeated as a whole
  double sustained_seconds = 2;  // 0: bursts only
};

// `queue(i)` queues call i of the cycle on `stream`. Bursts and the pieces of the long run are
// whole cycles, so that calls of unequal size weigh the same in all.
Timing time_calls(cudaStream_t stream, const Board& board, const TimingOptions& options,
                  const std::function<void(int)>& queue);

}  // namespace halfbyte
