// Helpers to parse the JSON messages between launchers and ranks. A malformed message is an IoError.
#pragma once

#include <climits>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"

namespace esp::launch {

// Checks the type and the range before the conversion, because converting any other number is undefined behaviour.
inline int64_t integer_of(const Json& value, int64_t least = INT64_MIN, int64_t most = INT64_MAX) {
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX) &&
                    value.get<int64_t>() >= least && value.get<int64_t>() <= most;
  if (!fits) throw IoError(fmt::format("got {}; expected an integer from {} to {}", value.dump(), least, most));
  return value.get<int64_t>();
}
inline int int_of(const Json& value) {
  return static_cast<int>(integer_of(value, INT_MIN, INT_MAX));
}

// Parses `text` and calls read(json); `what` names the message in errors.
template <typename Read>
auto read_message(const std::string& text, std::string_view what, Read&& read) {
  const Json json = parse_json(text, what);
  try {
    return read(json);
  } catch (const nlohmann::json::exception& error) {
    throw IoError(fmt::format("{}: {}", what, error.what()));
  } catch (const IoError& error) {
    throw IoError(fmt::format("{}: {}", what, error.what()));
  }
}

}  // namespace esp::launch
