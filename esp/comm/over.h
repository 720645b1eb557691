// What tests of communicators ask for: a transport by name, patience, and slices so small that modest buffers are cut.
#pragma once

#include <string>
#include <utility>

#include "esp/comm/communicator.h"

namespace esp::comm {

inline CommOptions over(std::string transport, size_t slice_bytes = 256) {
  CommOptions options;
  options.transport = std::move(transport);
  options.timeout = std::chrono::seconds(60);
  options.slice_bytes = slice_bytes;
  return options;
}

}  // namespace esp::comm
