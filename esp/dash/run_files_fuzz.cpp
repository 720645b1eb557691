// Fuzzes the readers of logs and traces. Any input must be read or rejected, and the output must be valid JSON.
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/dash/json_text.h"
#include "esp/dash/series.h"
#include "esp/dash/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::dash;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Series series;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    series.add_line(text.substr(at, end - at));
    at = end + 1;
  }
  for (const std::string& key : series.keys()) {
    (void)nlohmann::json::parse(series.downsample(key, -1e300, 1e300, 3));
    (void)nlohmann::json::parse(quote_json(key));
  }
  (void)series.gaps();
  (void)series.slowest_ranks();
  (void)nlohmann::json::parse(quote_json(text));
  try {
    const Trace trace = parse_trace(text);
    (void)nlohmann::json::parse(window_json(trace, -1e300, 1e300, 60));
  } catch (const esp::IoError&) {
  }
  return 0;
}
