// A small pool of worker threads for data-parallel loops.
//
// `run(f)` calls f(thread) once on every thread, 0 being the caller, and returns when all are done.
// Workers spin for a bounded time between calls (a fork and join costs under a microsecond while
// they do), then sleep. One caller at a time. Work is cut by indices, never by thread count, so
// that results do not depend on `size()`. If f throws, `run` still waits for the other threads,
// then throws the first exception to the caller; the pool can be used again.
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
    run_erased([](void* context,
                  int thread) { (*static_cast<std::remove_reference_t<F>*>(context))(thread); },
               const_cast<void*>(static_cast<const void*>(&f)));
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
    run([&](int) {
      for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
           i = next.fetch_add(1, std::memory_order_relaxed))
        f(i);
    });
  }

 private:
  struct State;
  void run_erased(void (*call)(void*, int), void* context);

  int size_ = 1;
  std::unique_ptr<State> state_;
};

int usable_processors();  // what the process's affinity allows

}  // namespace halfbyte
