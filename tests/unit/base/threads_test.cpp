#include "base/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "halfbyte/error.h"

namespace halfbyte {
namespace {

TEST(ThreadPool, EveryIndexOnceForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    std::vector<int> seen(1000);
    for (int round = 0; round < 20; ++round)
      pool.parallel_for(1000, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
    EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 20'000) << threads;
    for (const int count : seen) ASSERT_EQ(count, 20);
    pool.parallel_for(0, [](int64_t) { FAIL(); });
  }
}

// Who came is waited for, who did not is not called afterwards.
TEST(ThreadPool, ShareWaitsOnlyForThoseThatCame) {
  ThreadPool pool(3);
  std::atomic<int> left{2000}, calls{0};
  for (int round = 0; round < 2000; ++round) {
    const int before = left;
    std::atomic<int> inside{0};
    pool.share([&](int) {
      ++inside;
      ++calls;
      if (left > before - 1) left = before - 1;
      --inside;
    });
    ASSERT_EQ(inside, 0) << "somebody is inside after the call";
    ASSERT_EQ(left, before - 1);
  }
  EXPECT_GE(calls, 2000);
  EXPECT_LE(calls, 6000);
  std::atomic<int> ran{0};
  pool.run([&](int) { ++ran; });
  EXPECT_EQ(ran, 3) << "run, after calls that some may have missed, is for every thread";
}

// More threads than any machine here has processors: most are put aside while others work.
TEST(ThreadPool, ManyThreadsTakeShortWorkWithoutWaitingForEachOther) {
  ThreadPool pool(64);
  std::atomic<int64_t> sum{0};
  const auto began = std::chrono::steady_clock::now();
  for (int round = 0; round < 500; ++round)
    pool.parallel_for(100, [&](int64_t i) { sum.fetch_add(i, std::memory_order_relaxed); });
  EXPECT_EQ(sum, 500 * 4950);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
}

// On any thread, the caller's among them; and the pool works on.
TEST(ThreadPool, ThrowsToTheCallerWhenAllAreDone) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int thrower = 0; thrower < threads; ++thrower) {
      std::vector<int> done(static_cast<size_t>(threads));
      std::string message;
      try {
        pool.run([&](int thread) {
          if (thread == thrower) throw std::runtime_error("of " + std::to_string(thread));
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          done[static_cast<size_t>(thread)] = 1;
        });
      } catch (const std::runtime_error& error) {
        message = error.what();
      }
      EXPECT_EQ(message, "of " + std::to_string(thrower));
      EXPECT_EQ(std::accumulate(done.begin(), done.end(), 0), threads - 1);
    }
    EXPECT_THROW(pool.run([](int thread) { throw thread; }), int);  // all of them
    std::atomic<int> ran{0};
    pool.run([&](int) { ++ran; });
    EXPECT_EQ(ran, threads);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// 0: it says how many could be started. In little address space, where so many stacks do not fit.
[[noreturn]] void start_too_many_threads() {
  rlimit limit;
  limit.rlim_cur = limit.rlim_max = rlim_t{1} << 30;
  setrlimit(RLIMIT_AS, &limit);
  try {
    ThreadPool pool(4000);
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(error.kind() == ErrorKind::kResource ? 0 : 2);
  }
  std::_Exit(3);
}

TEST(ThreadPoolDeathTest, SaysHowManyThreadsCouldBeStarted) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(start_too_many_threads(), testing::ExitedWithCode(0),
              "threads: only [0-9]+ of 4000 could be started");
}
#endif

}  // namespace
}  // namespace halfbyte
