#include "esp/net/shm/lanes.h"

#include <algorithm>
#include <bit>

#include "esp/base/check.h"

namespace esp::net {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

size_t Lanes::bell_bytes(size_t size) {
  return (size * sizeof(Doorbell) + kPage - 1) / kPage * kPage;
}

size_t Lanes::fixed_bytes(size_t size) {
  return bell_bytes(size) + size * size * kCells * sizeof(Cell);
}

size_t Lanes::segment_bytes(int size, size_t left) {
  auto n = static_cast<size_t>(size);
  // A quarter of what is left: other groups and other jobs want some too, and running out kills.
  size_t bulk = std::min(kBulkBytes, left / 4);
  size_t slot = std::clamp(std::bit_floor(bulk / (n * n * kCells)), kMinSlotBytes, kMaxSlotBytes);
  return fixed_bytes(n) + n * n * kCells * slot;
}

size_t Lanes::slot_bytes_in(size_t bytes, int size) {
  auto n = static_cast<size_t>(size);
  size_t fixed = fixed_bytes(n), num_slots = n * n * kCells;
  ESP_CHECK(bytes > fixed && (bytes - fixed) % num_slots == 0, "{} bytes for {} members", bytes, size);
  return (bytes - fixed) / num_slots;
}

Lanes::Lanes(std::byte* segment, size_t bytes, int size)
    : segment_(segment),
      size_(static_cast<size_t>(size)),
      slots_(segment + fixed_bytes(size_)),
      slot_bytes_(slot_bytes_in(bytes, size)) {}

}  // namespace esp::net
