// Scratch memory of the calling thread, one buffer per element type and user, grown to the largest request and kept.
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
