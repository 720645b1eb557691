#include "esp/device/device.h"

#include <charconv>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/base/table.h"

namespace esp::device {
namespace {

struct Row {
  std::string_view name;
  DeviceKind kind;
};
constexpr Row kKinds[] = {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}};

}  // namespace

std::string_view name_of(DeviceKind kind) {
  for (const Row& row : kKinds)
    if (row.kind == kind) return row.name;
  check_failed(__FILE__, __LINE__, "known device kind", fmt::format("{}", static_cast<int>(kind)));
}

std::string name_of(Device device) {
  if (device.kind == DeviceKind::cpu) return "cpu";  // a host has one CPU device
  return fmt::format("{}:{}", name_of(device.kind), device.index);
}

Device parse_device(std::string_view name) {
  auto colon = name.find(':');
  Device device{find_row("device", kKinds, name.substr(0, colon)).kind, 0};
  if (colon == std::string_view::npos) return device;
  std::string_view number = name.substr(colon + 1);
  auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), device.index);
  bool whole = error == std::errc() && end == number.data() + number.size() && device.index >= 0;
  if (!whole || (device.kind == DeviceKind::cpu && device.index != 0))
    throw UsageError(fmt::format("device: got \"{}\"; expected cpu, cuda or cuda:N", name));
  return device;
}

}  // namespace esp::device
