// For tests: counts the calls of `new` in a test binary. It replaces the global operators, so exactly one source file
// of a binary may include it. Sanitizers use their own allocator: then nothing is counted (ESP_COUNTS_ALLOCATIONS is 0)
// and the tests are skipped.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // detects sanitizers with g++
#define ESP_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)  // detects sanitizers with clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ESP_COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef ESP_COUNTS_ALLOCATIONS
#define ESP_COUNTS_ALLOCATIONS 1
#endif

#if ESP_COUNTS_ALLOCATIONS
namespace esp {
inline thread_local uint64_t thread_allocations = 0;  // allocations of this thread
inline std::atomic<uint64_t> total_allocations{0};    // allocations of all threads
}  // namespace esp

// Not inlined: if the compiler inlines only one operator of a pair, it reports mismatched new and delete.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++esp::thread_allocations;
  esp::total_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
#endif
