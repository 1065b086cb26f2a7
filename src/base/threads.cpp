#include "base/threads.h"

#include <fmt/format.h>
#include <sched.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "halfbyte/error.h"

namespace halfbyte {

namespace {

// Waits in three steps: for pure spinning, for giving way to others of this processor, then (for a
// worker) for sleep. Together about 0.5 ms, longer than the gap between two operations of a step.
// NOTE: who only spins uses up the share of the processor that its next work needs, and keeps it
// from the thread that is waited for.
constexpr int kPureSpins = 1000;
constexpr int kSpins = 20000;
constexpr int kSpinsBetweenYields = 64;

void spin_once(int spin) {
  if (spin >= kPureSpins && spin % kSpinsBetweenYields == 0) return std::this_thread::yield();
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// One call of `run` or `share` as the workers see it, in a word: its number, whether it is closed
// to those who come now, and how many have come.
struct Gate {
  static constexpr int kCallShift = 16;
  static constexpr uint64_t kClosed = 1 << 15;
  static uint64_t call(uint64_t gate) { return gate >> kCallShift; }
  static bool closed(uint64_t gate) { return (gate & kClosed) != 0; }
  static int came(uint64_t gate) { return static_cast<int>(gate & (kClosed - 1)); }
};

}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::atomic<uint64_t> gate{0};
  std::atomic<int> finished{0};  // of those that came
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  void (*call)(void*, int) = nullptr;
  void* context = nullptr;
  std::mutex mutex;
  std::condition_variable wake;
  std::exception_ptr error;  // the first of this call; written under `mutex`

  void call_one(int thread) {
    try {
      call(context, thread);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void work(int thread) {
    uint64_t seen = 0;
    const auto is_new = [&](uint64_t now) { return Gate::call(now) != seen; };
    for (;;) {
      for (int spin = 0; spin < kSpins && !is_new(gate.load(std::memory_order_acquire)); ++spin)
        spin_once(spin);
      if (!is_new(gate.load(std::memory_order_acquire))) {
        std::unique_lock lock(mutex);
        sleepers.fetch_add(1);
        wake.wait(lock, [&] { return is_new(gate.load()); });
        sleepers.fetch_sub(1);
      }
      uint64_t now = gate.load(std::memory_order_acquire);
      while (!Gate::closed(now) && !gate.compare_exchange_weak(now, now + 1)) {
      }
      seen = Gate::call(now);
      if (stop.load(std::memory_order_acquire)) return;
      if (Gate::closed(now)) continue;  // too late
      call_one(thread);
      finished.fetch_add(1, std::memory_order_release);
    }
  }

  // Ends and joins all workers.
  void finish() {
    stop.store(true);
    open_gate();
    for (std::thread& worker : workers) worker.join();
  }

  // Nobody is inside: the last call has been waited for.
  void open_gate() {
    finished.store(0, std::memory_order_relaxed);
    gate.store((Gate::call(gate.load()) + 1) << Gate::kCallShift);
    if (sleepers.load() > 0) {
      std::lock_guard lock(mutex);
      wake.notify_all();
    }
  }

  void wait_for(int count) {
    for (int spin = 0; finished.load(std::memory_order_acquire) < count; ++spin)
      spin_once(spin % kSpins);
  }
};

ThreadPool::ThreadPool(int threads)
    : size_(threads > 0 ? threads : usable_processors()), state_(std::make_unique<State>()) {
  try {
    for (int i = 1; i < size_; ++i) state_->workers.emplace_back([this, i] { state_->work(i); });
  } catch (const std::exception& error) {
    const size_t started = state_->workers.size() + 1;
    state_->finish();
    throw Error(ErrorKind::kResource, "threads",
                fmt::format("only {} of {} could be started: {}", started, size_, error.what()));
  }
}

ThreadPool::~ThreadPool() { state_->finish(); }

void ThreadPool::run_erased(Wait wait, void (*call)(void*, int), void* context) {
  state_->call = call;
  state_->context = context;
  if (size_ > 1) state_->open_gate();
  state_->call_one(0);
  if (size_ > 1)
    state_->wait_for(wait == Wait::kForAll ? size_ - 1
                                           : Gate::came(state_->gate.fetch_or(Gate::kClosed)));
  if (state_->error) std::rethrow_exception(std::exchange(state_->error, nullptr));
}

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace halfbyte
