// Sleeping on a word until it changes, between threads or processes that share it.
//
// std::atomic::wait yields a few times before it sleeps, and beside other programs whoever yields waits out their time
// slices: ten thousand short tasks of four threads beside three compilers took five minutes. Any thread may call.
#pragma once

#include <atomic>
#include <cstdint>

#include "esp/base/clock.h"

namespace esp {

// Sleeps while the word is `value`, until it is woken or (with a deadline) for so long; it may also return for no
// reason, so look again. What it costs to wake nobody is a call into the kernel: count who sleeps.
void sleep_on(const std::atomic<uint32_t>& word, uint32_t value);
void sleep_on(const std::atomic<uint32_t>& word, uint32_t value, Deadline deadline);
void wake_all(const std::atomic<uint32_t>& word);

}  // namespace esp
