// Calls read_environment with arbitrary bytes. It must throw an error with a message or return a valid placement.
// Input: lines of NAME=value; a name may be abbreviated to the index of a known variable.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/launch/environment.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::launch;
  if (size > 4096) return 0;
  const auto known = placement_variables();
  Environment environment;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const size_t equals = line.find('=');
    if (equals == 1)
      environment[std::string(known[static_cast<uint8_t>(line[0]) % known.size()])] = line.substr(2);
    else if (equals != line.npos)
      environment[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  try {
    const Placement place = read_environment(environment);
    ESP_CHECK(place.size >= 1 && place.rank >= 0 && place.rank < place.size);
    ESP_CHECK(place.local_size >= 1 && place.local_rank >= 0 && place.local_rank < place.local_size);
    ESP_CHECK(place.master_port >= 0 && place.master_port <= 65535);
  } catch (const esp::UsageError&) {
  }
  try {
    for (const std::string& host : expand_hosts({reinterpret_cast<const char*>(data), size})) ESP_CHECK(!host.empty());
  } catch (const esp::UsageError&) {
  }
  return 0;
}
