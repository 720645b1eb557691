#include <charconv>
#include <string_view>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/capi/handles.h"

namespace esp::capi {
namespace {

template <typename Number>
Number parse_number(std::string_view key, std::string_view value) {
  Number number{};
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < Number{})
    throw UsageError(fmt::format("option {}: got \"{}\"; expected a number >= 0", key, value));
  return number;
}

struct OptionRow {
  std::string_view name;
  void (*read)(CapiOptions& options, std::string_view key, std::string_view value);
};

Duration parse_seconds(std::string_view key, std::string_view value) {
  constexpr double kYear = 365.0 * 24 * 3600;
  auto seconds = std::chrono::duration<double>(parse_number<double>(key, value));
  if (!(seconds.count() <= kYear))
    throw UsageError(fmt::format("option {}: got {} s; expected at most one year", key, value));
  return std::chrono::duration_cast<Duration>(seconds);
}

constexpr OptionRow kOptions[] = {
    {"timeout_s",
     [](CapiOptions& options, std::string_view key, std::string_view value) {
       options.net.timeout = options.comm.timeout = parse_seconds(key, value);
     }},
    {"start_timeout_s", [](CapiOptions& options, std::string_view key,
                           std::string_view value) { options.net.start_timeout = parse_seconds(key, value); }},
    {"link_timeout_s", [](CapiOptions& options, std::string_view key,
                          std::string_view value) { options.net.link_timeout = parse_seconds(key, value); }},
    {"transport",
     [](CapiOptions& options, std::string_view, std::string_view value) { options.comm.transport = value; }},
    {"algorithms",
     [](CapiOptions& options, std::string_view, std::string_view value) { options.comm.algorithms = value; }},
    {"slice_bytes", [](CapiOptions& options, std::string_view key,
                       std::string_view value) { options.comm.slice_bytes = parse_number<size_t>(key, value); }},
    {"shape",
     [](CapiOptions& options, std::string_view key, std::string_view value) {
       while (!value.empty()) {
         std::string_view dim = value.substr(0, value.find('x'));
         options.comm.shape.push_back(parse_number<int>(key, dim));
         value.remove_prefix(std::min(value.size(), dim.size() + 1));
       }
     }},
    {"interface",
     [](CapiOptions& options, std::string_view, std::string_view value) { options.net.interface = value; }},
    {"streams_per_peer", [](CapiOptions& options, std::string_view key,
                            std::string_view value) { options.net.streams_per_peer = parse_number<int>(key, value); }},
};

}  // namespace

CapiOptions parse_options(const char* text, CapiOptions options) {
  std::string_view rest = text ? text : "";
  while (!rest.empty()) {
    std::string_view item = rest.substr(0, rest.find(';'));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    if (item.empty()) continue;
    size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      throw UsageError(fmt::format("options: got \"{}\"; expected key=value", item));
    std::string_view key = item.substr(0, equals);
    find_row("option", kOptions, key).read(options, key, item.substr(equals + 1));
  }
  return options;
}

}  // namespace esp::capi
