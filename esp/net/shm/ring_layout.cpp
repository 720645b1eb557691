#include "esp/net/shm/ring_layout.h"

#include <algorithm>
#include <bit>

#include "esp/base/check.h"

namespace esp::net {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

size_t ShmRingLayout::event_bytes(size_t size) {
  return (size * sizeof(FutexEvent) + kPage - 1) / kPage * kPage;
}

size_t ShmRingLayout::fixed_bytes(size_t size) {
  return event_bytes(size) + size * size * kCells * sizeof(ShmCell);
}

size_t ShmRingLayout::segment_bytes(int size, size_t left) {
  auto n = static_cast<size_t>(size);
  // At most a quarter of the free shared memory: other groups and jobs need some too, and a process that touches a page
  // without backing is killed.
  size_t bulk = std::min(kBulkBytes, left / 4);
  size_t slot = std::clamp(std::bit_floor(bulk / (n * n * kCells)), kMinSlotBytes, kMaxSlotBytes);
  return fixed_bytes(n) + n * n * kCells * slot;
}

size_t ShmRingLayout::slot_bytes_in(size_t bytes, int size) {
  auto n = static_cast<size_t>(size);
  size_t fixed = fixed_bytes(n), num_slots = n * n * kCells;
  ESP_CHECK(bytes > fixed && (bytes - fixed) % num_slots == 0,
            "shared segment: got {} bytes, not a valid size for {} members", bytes, size);
  return (bytes - fixed) / num_slots;
}

ShmRingLayout::ShmRingLayout(std::byte* segment, size_t bytes, int size)
    : segment_(segment),
      size_(static_cast<size_t>(size)),
      slots_(segment + fixed_bytes(size_)),
      slot_bytes_(slot_bytes_in(bytes, size)) {}

}  // namespace esp::net
