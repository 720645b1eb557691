// A device: its kind and its number. A value that is cheap to copy and compare.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace esp::device {

enum class DeviceKind : uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

std::string_view name_of(DeviceKind kind);
std::string name_of(Device device);          // for example "cpu", "cuda:1"
Device parse_device(std::string_view name);  // throws a UsageError that lists the known kinds

}  // namespace esp::device
