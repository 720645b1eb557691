// Futex wait and wake on a 32-bit word, between threads or processes that share it. Any thread may call.
//
// Why not std::atomic::wait: it yields a few times before it sleeps. On a busy machine each yield gives the CPU to
// other programs for their whole time slices: ten thousand short tasks on four threads took five minutes while three
// compilers ran.
#pragma once

#include <atomic>
#include <cstdint>

#include "esp/base/clock.h"

namespace esp {

// Sleeps while the word equals `value`, until a wake-up or the deadline. Wake-ups may be spurious, so the caller must
// check the word again. wake_all makes a system call even if no thread sleeps; callers therefore count the sleeping
// threads and skip the call if there are none.
void sleep_on(const std::atomic<uint32_t>& word, uint32_t value);
void sleep_on(const std::atomic<uint32_t>& word, uint32_t value, Deadline deadline);
void wake_all(const std::atomic<uint32_t>& word);

}  // namespace esp
