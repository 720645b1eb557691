#include "esp/obs/counters.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace esp::obs {
namespace {

TEST(Counters, ReturnsSameCounterForSameName) {
  Counters counters;
  Counter& sent = counters.counter("bytes_sent");
  counters.counter("messages").add();
  counters.counter("bytes_sent").add(10);
  sent.add(5);
  EXPECT_EQ(counters.snapshot().dump(), R"({"bytes_sent":15,"messages":1})");
}

TEST(Counters, CountEveryAddOfConcurrentThreads) {
  Counters counters;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&counters, t] {
      Counter& shared = counters.counter("shared");
      Counter& own = counters.counter("own " + std::to_string(t));
      for (int i = 0; i < 10000; ++i) {
        shared.add();
        own.add(2);
      }
    });
  for (std::thread& thread : threads) thread.join();
  Json snapshot = counters.snapshot();
  EXPECT_EQ(snapshot["shared"], 40000);
  for (int t = 0; t < 4; ++t) EXPECT_EQ(snapshot["own " + std::to_string(t)], 20000);
}

}  // namespace
}  // namespace esp::obs
