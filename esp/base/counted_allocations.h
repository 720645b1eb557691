// For tests: counts what `new` is asked for in a test binary. It replaces the global operators, so exactly one file of
// a binary includes it. Under a sanitizer, which brings an allocator of its own, nothing is counted
// (ESP_COUNTS_ALLOCATIONS is 0) and tests skip.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // g++
#define ESP_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)  // clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ESP_COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef ESP_COUNTS_ALLOCATIONS
#define ESP_COUNTS_ALLOCATIONS 1
#endif

#if ESP_COUNTS_ALLOCATIONS
namespace esp {
inline thread_local uint64_t allocations_here = 0;       // by this thread
inline std::atomic<uint64_t> allocations_everywhere{0};  // by all
}  // namespace esp

// Not inlined: seeing through one of a pair and not the other, the compiler takes them for mismatched.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++esp::allocations_here;
  esp::allocations_everywhere.fetch_add(1, std::memory_order_relaxed);
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
