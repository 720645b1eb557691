// Runs the parts of a job in parallel on short-lived threads.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace esp::data {

// Calls work(part) for every part in [0, parts) on at most `threads` threads, including the calling thread. Rethrows
// the first exception after all threads have stopped.
template <typename Work>
void parallel_for_parts(size_t parts, int threads, const Work& work) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr problem;  // guarded by mutex
  auto loop = [&] {
    try {
      for (size_t part; (part = next.fetch_add(1)) < parts;) work(part);
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!problem) problem = std::current_exception();
      next = parts;
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads && static_cast<size_t>(i) < parts; ++i) {
    try {
      helpers.emplace_back(loop);
    } catch (const std::system_error&) {
      break;  // the system allows no more threads; the started ones do the work
    }
    pthread_setname_np(helpers.back().native_handle(), "esp-tokens");
  }
  loop();
  for (std::thread& helper : helpers) helper.join();
  if (problem) std::rethrow_exception(problem);
}

}  // namespace esp::data
