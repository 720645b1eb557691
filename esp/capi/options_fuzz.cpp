// The options of the C interface from any text: refused with words, or read.
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
    const capi::Options options = capi::parse_options(text.c_str());
    (void)comm::parse_preferences(options.comm.algorithms);
  } catch (const UsageError&) {
  }
  return 0;
}
