#include "cuda/timing.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "cuda/graph.h"

namespace halfbyte {
namespace {

constexpr double kBurstSeconds = 3e-3;
constexpr double kPieceSeconds = 10e-3;  // of the long run
constexpr double kLeadSeconds = 0.3e-3;  // queued before a burst: the host stays ahead
constexpr auto kPause = std::chrono::milliseconds(30);

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median_of(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

}  // namespace

Timing time_calls(cudaStream_t stream, const Board& board, const TimingOptions& options,
                  const std::function<void(int)>& queue) {
  const auto queue_cycles = [&](int64_t count) {
    for (int64_t i = 0; i < count * options.cycle; ++i) queue(static_cast<int>(i % options.cycle));
  };
  CudaEvent begin, end;
  const auto time_cycles = [&](int64_t count) {
    begin.record(stream);
    queue_cycles(count);
    end.record(stream);
    end.wait();
    return end.seconds_since(begin);
  };
  queue_cycles(1);
  HB_CUDA(cudaStreamSynchronize(stream));
  const double cycle_seconds = std::max(time_cycles(1), 1e-7);
  const auto cycles_of = [&](double seconds) {
    return std::max<int64_t>(1, std::llround(std::ceil(seconds / cycle_seconds)));
  };

  // Bursts.
  Timing timing;
  std::vector<double> bursts;
  const int64_t burst = cycles_of(kBurstSeconds);
  const size_t repetitions = cycle_seconds > 50e-3 ? 3 : 9;
  const auto lead = static_cast<int>(std::min<int64_t>(
      options.cycle, std::llround(std::ceil(kLeadSeconds / cycle_seconds * options.cycle))));
  for (size_t i = 0; i < repetitions; ++i) {
    std::this_thread::sleep_for(kPause);
    for (int call = 0; call < lead; ++call) queue(call);
    bursts.push_back(time_cycles(burst));
  }
  timing.burst = median_of(bursts) / static_cast<double>(burst * options.cycle);
  if (options.sustained_seconds <= 0) return timing;

  // Back to back: three pieces are queued before the first is waited for.
  constexpr size_t kQueued = 3;
  std::array<std::pair<CudaEvent, CudaEvent>, kQueued> pieces;
  const int64_t piece = cycles_of(kPieceSeconds);
  std::vector<double> times;
  BoardSampler sampler(board);
  const double start = seconds_now();
  size_t half = 0;  // how many of `times` belong to the first half
  for (size_t i = 0;; ++i) {
    auto& [first, last] = pieces[i % kQueued];
    if (i >= kQueued) {
      last.wait();
      times.push_back(last.seconds_since(first));
      const double elapsed = seconds_now() - start;
      if (elapsed < options.sustained_seconds / 2) half = times.size();
      if (elapsed > options.sustained_seconds) break;
    }
    first.record(stream);
    queue_cycles(piece);
    last.record(stream);
  }
  HB_CUDA(cudaStreamSynchronize(stream));
  timing.board = sampler.finish();
  const auto skip = std::min(half, times.size() - 1);
  times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(skip));
  timing.sustained = median_of(times) / static_cast<double>(piece * options.cycle);
  return timing;
}

}  // namespace halfbyte
