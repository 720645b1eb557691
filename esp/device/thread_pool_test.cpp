#include "esp/device/thread_pool.h"

#include <atomic>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "esp/device/barrier.h"
#include "esp/device/stream.h"

namespace esp::device {
namespace {

TEST(ThreadPool, EveryWorkerRunsOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    std::vector<std::atomic<int>> calls(static_cast<size_t>(threads));
    pool.run([&](int worker) { ++calls[static_cast<size_t>(worker)]; });
    for (int worker = 0; worker < threads; ++worker) EXPECT_EQ(calls[static_cast<size_t>(worker)], 1) << worker;
  }
}

TEST(ThreadPool, CallerIsWorkerZero) {
  ThreadPool pool(3);
  std::vector<std::thread::id> ids(3), again(3);
  pool.run([&](int worker) { ids[static_cast<size_t>(worker)] = std::this_thread::get_id(); });
  pool.run([&](int worker) { again[static_cast<size_t>(worker)] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), 3u);
  EXPECT_EQ(ids, again);
}

// Every worker must see all writes of one round in the next round; otherwise the sums would differ.
TEST(ThreadPool, WorkersSeeWritesOfEarlierRounds) {
  ThreadPool pool(4);
  std::vector<int64_t> values(4, 1), sums(4);
  for (int round = 0; round < 5000; ++round) {
    pool.run([&](int worker) {
      sums[static_cast<size_t>(worker)] = std::accumulate(values.begin(), values.end(), int64_t{0});
    });
    pool.run([&](int worker) { values[static_cast<size_t>(worker)] = sums[static_cast<size_t>(worker)] % 1000003; });
    ASSERT_EQ(sums[0], sums[3]) << "round " << round;
  }
}

TEST(ThreadPool, SleepingWorkersWakeUp) {
  ThreadPool pool(2);
  std::atomic<int> calls = 0;
  for (int round = 0; round < 5; ++round) {
    // longer than a worker spins, so that workers are asleep
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.run([&](int) { ++calls; });
  }
  EXPECT_EQ(calls, 10);
}

TEST(ThreadPool, CallerWaitsForSlowestWorker) {
  ThreadPool pool(2);
  std::atomic<bool> done = false;
  pool.run([&](int worker) {
    if (worker == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    done = true;
  });
  EXPECT_TRUE(done);
}

TEST(ThreadPool, CanBeDestroyedBeforeFirstTask) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool idle(3);
    ThreadPool used(2);
    std::atomic<int> calls = 0;
    used.run([&](int) { ++calls; });
    EXPECT_EQ(calls, 2);
  }
}

TEST(ThreadPool, IndependentPoolsRunConcurrently) {
  std::vector<std::thread> owners;
  std::atomic<int> calls = 0;
  for (int owner = 0; owner < 3; ++owner)
    owners.emplace_back([&] {
      ThreadPool pool(2);
      for (int round = 0; round < 200; ++round) pool.run([&](int) { ++calls; });
    });
  for (std::thread& owner : owners) owner.join();
  EXPECT_EQ(calls, 3 * 200 * 2);
}

TEST(ParallelFor, CoversEveryElementOnceInMultiplesOfGrain) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    Stream stream;
    stream.pool = &pool;
    for (int64_t grain : {1, 4, 64})
      for (int64_t count : {0, 1, 3, 63, 64, 65, 1000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        parallel_for(stream, count, grain, [&](int64_t begin, int64_t end) {
          EXPECT_EQ(begin % grain, 0);
          EXPECT_TRUE(end == count || end % grain == 0);
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], 1) << i << " of " << count;
      }
  }
}

// Between the two barrier waits of a round, every mark must equal this round: all workers have written it, and no
// worker has started the next round.
TEST(Barrier, ReleasesThreadsOnlyAfterAllArrive) {
  constexpr int kThreads = 3, kRounds = 500;
  ThreadPool pool(kThreads);
  Barrier barrier(kThreads);
  std::vector<std::atomic<int>> marks(kThreads);
  std::atomic<int> wrong = 0;
  pool.run([&](int worker) {
    for (int round = 1; round <= kRounds; ++round) {
      marks[static_cast<size_t>(worker)] = round;
      barrier.wait();
      for (auto& mark : marks)
        if (mark != round) ++wrong;
      barrier.wait();
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Barrier, ReturnsImmediatelyForOneThread) {
  Barrier barrier(1);
  barrier.wait();
  barrier.wait();
}

}  // namespace
}  // namespace esp::device
