// The types behind the opaque handles of the C interface, and the conversion of exceptions to result codes.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "esp/base/work.h"
#include "esp/comm/communicator.h"
#include "esp/net/world.h"
#include "espalier/collectives.h"

// A communicator. Split communicators share their parent's world; the last of them destroys it.
struct esp_comm {
  std::shared_ptr<esp::net::World> world;
  std::unique_ptr<esp::comm::Communicator> communicator;
  std::map<void*, std::shared_ptr<void>> memory;
};

struct esp_work {
  esp::Work work;
};

namespace esp::capi {

// Stores the message of the current exception for esp_last_error and returns its result code. Call inside a catch
// block.
esp_result store_current_exception() noexcept;

// Runs `body`. Returns the result code of its exception, if it throws one.
template <typename Body>
esp_result run_guarded(Body&& body) noexcept {
  try {
    body();
    return ESP_OK;
  } catch (...) {
    return store_current_exception();
  }
}

// The options of a communicator, parsed from "key=value;key=value". UsageError lists the known keys.
struct CapiOptions {
  net::NetOptions net;
  comm::CommOptions comm;
};
CapiOptions parse_options(const char* text, CapiOptions options = {});

}  // namespace esp::capi
