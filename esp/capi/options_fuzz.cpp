// Fuzz target: any option text is either rejected with a message or parsed.
#include <cstddef>
#include <cstdint>
#include <string>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/capi/handles.h"
#include "esp/comm/preferences.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const capi::CapiOptions options = capi::parse_options(text.c_str());
    (void)comm::parse_preferences(options.comm.algorithms);
  } catch (const UsageError&) {
  }
  return 0;
}
