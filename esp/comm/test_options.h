// Options for communicator tests: a transport by name, a timeout of 60 s, and slices small enough that short buffers
// are sliced.
#pragma once

#include <string>
#include <utility>

#include "esp/comm/communicator.h"

namespace esp::comm {

inline CommOptions test_options(std::string transport, size_t slice_bytes = 256) {
  CommOptions options;
  options.transport = std::move(transport);
  options.timeout = std::chrono::seconds(60);
  options.slice_bytes = slice_bytes;
  return options;
}

}  // namespace esp::comm
