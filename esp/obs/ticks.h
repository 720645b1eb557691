// Fast clock: the CPU's time-stamp counter (TSC) on x86, nanoseconds on other machines. Converting ticks to time needs
// two anchors that contain both ticks and time (flight_format.h).
#pragma once

#include <cstdint>

#include "esp/base/clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace esp::obs {

// Used instead of the system clock, whose reads would cost more than the rest of a flight record.
inline uint64_t fast_ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();  // same as __rdtsc(), whose header takes most of a second to compile
#else
  return static_cast<uint64_t>(now_ns());
#endif
}

// True if fast_ticks() is consistent across cores and frequency changes.
inline bool ticks_are_steady() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007u, &a, &b, &c, &d) && (d & (1u << 8));
#else
  return true;
#endif
}

}  // namespace esp::obs
