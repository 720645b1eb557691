// Room that belongs to the calling thread, one run per element type and user, grown to the largest asked for and kept.
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
