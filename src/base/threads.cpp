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
constexpr int kSpins =
    20000;  // about 0.5 ms: longer than the gap between two operations of one step

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}
}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> running{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  void (*call)(void*, int) = nullptr;
  void* context = nullptr;
  std::mutex mutex;
  std::condition_variable wake;
  std::exception_ptr error;  // the first of this `run`; written under `mutex`

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
    for (;;) {
      for (int spin = 0; spin < kSpins && generation.load(std::memory_order_acquire) == seen;
           ++spin)
        pause();
      if (generation.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex);
        sleepers.fetch_add(1);
        wake.wait(lock, [&] { return generation.load() != seen; });
        sleepers.fetch_sub(1);
      }
      ++seen;
      if (stop.load(std::memory_order_acquire)) return;
      call_one(thread);
      running.fetch_sub(1, std::memory_order_release);
    }
  }

  // Ends and joins all workers.
  void finish() {
    stop.store(true);
    start_generation();
    for (std::thread& worker : workers) worker.join();
  }

  void start_generation() {
    generation.fetch_add(1);
    if (sleepers.load() > 0) {
      std::lock_guard lock(mutex);
      wake.notify_all();
    }
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

void ThreadPool::run_erased(void (*call)(void*, int), void* context) {
  state_->call = call;
  state_->context = context;
  if (size_ > 1) {
    state_->running.store(size_ - 1, std::memory_order_relaxed);
    state_->start_generation();
  }
  state_->call_one(0);
  // NOTE: yields now and then, so that more threads than processors still make progress.
  for (int spin = 0; state_->running.load(std::memory_order_acquire) > 0; ++spin)
    (spin & 1023) == 1023 ? std::this_thread::yield() : pause();
  if (state_->error) std::rethrow_exception(std::exchange(state_->error, nullptr));
}

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace halfbyte
