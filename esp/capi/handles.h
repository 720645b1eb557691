// What stands behind the C interface's opaque handles, and how an exception becomes a result code.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "esp/base/work.h"
#include "esp/comm/communicator.h"
#include "esp/net/world.h"
#include "espalier/collectives.h"

// Children share their parent's world; it ends with the last of them.
struct esp_comm {
  std::shared_ptr<esp::net::World> world;
  std::unique_ptr<esp::comm::Communicator> communicator;
  std::map<void*, std::shared_ptr<void>> memory;
};

struct esp_work {
  esp::Work work;
};

namespace esp::capi {

// Keeps the message for esp_last_error; to be called inside a catch block.
esp_result remember_current_exception() noexcept;

// Runs `body`, which throws or not.
template <typename Body>
esp_result guarded(Body&& body) noexcept {
  try {
    body();
    return ESP_OK;
  } catch (...) {
    return remember_current_exception();
  }
}

// "key=value;key=value" into both kinds of options. UsageError lists the keys there are.
struct Options {
  net::NetOptions net;
  comm::CommOptions comm;
};
Options parse_options(const char* text, Options options = {});

}  // namespace esp::capi
