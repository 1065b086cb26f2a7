// A small pool of worker threads for data-parallel loops.
//
// `run(f)` calls f(thread) once on every thread, 0 being the caller, and returns when all are done.
// `share(f)` is for an f that takes work from a common counter until there is none: it calls
// f(thread) on the caller and on those threads that come before the caller is done, and waits for
// these alone, so that a thread which the system has put aside holds up nobody.
// Workers spin for a bounded time between calls (a fork and join costs under a microsecond while
// they do), then sleep. One caller at a time. Work is cut by indices, never by thread count, so
// that results do not depend on `size()`. If f throws, both still wait for the other threads, then
// throw the first exception to the caller; the pool can be used again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace halfbyte {

class ThreadPool {
 public:
  // 0: as many as the process may run on. Throws Error{kResource} if so many cannot be started.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int size() const { return size_; }

  template <class F>
  void run(F&& f) {
    run_erased(Wait::kForAll, f);
  }
  template <class F>
  void share(F&& f) {
    run_erased(Wait::kForThoseThatCame, f);
  }

  // f(index) for index in [0, count), handed out one at a time in rising order. `cost` is the size
  // of it all in about a nanosecond's work: little stays on the calling thread, since waking the
  // others, or waiting for one that the system has put aside, costs more. An exception ends the
  // loop of the thread that met it: indices that it would have taken go to the others, or to none.
  static constexpr int64_t kWorthSharing = 5000;
  template <class F>
  void parallel_for(int64_t count, int64_t cost, F&& f) {
    if (count > 1 && cost >= kWorthSharing) return parallel_for(count, f);
    for (int64_t i = 0; i < count; ++i) f(i);
  }
  template <class F>
  void parallel_for(int64_t count, F&& f) {
    if (count <= 0) return;
    std::atomic<int64_t> next{0};
    share([&](int) {
      for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
           i = next.fetch_add(1, std::memory_order_relaxed))
        f(i);
    });
  }

 private:
  struct State;
  enum class Wait { kForAll, kForThoseThatCame };

  template <class F>
  void run_erased(Wait wait, F& f) {
    run_erased(
        wait, [](void* context, int thread) { (*static_cast<F*>(context))(thread); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }
  void run_erased(Wait wait, void (*call)(void*, int), void* context);

  int size_ = 1;
  std::unique_ptr<State> state_;
};

int usable_processors();  // what the process's affinity allows

}  // namespace halfbyte
