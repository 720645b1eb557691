// Scratch memory of the calling thread: one buffer per element type and use, which grows to the largest request and is
// kept.
#pragma once

#include <cstddef>
#include <vector>

namespace esp::sync {

template <typename T, typename User>
T* scratch(size_t count) {
  thread_local std::vector<T> kept;
  if (kept.size() < count) kept.resize(count);
  return kept.data();
}

}  // namespace esp::sync
