#include "esp/comm/fused/registry.h"

#include <sys/mman.h>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::comm {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPopulateUpTo = size_t{1} << 30;

// Faults pages in at registration, so that the first collective does not have to. Every member maps all parts, so the
// pages of the peers' parts are faulted in too, up to a limit; the remaining pages are faulted in on first use.
void populate(std::byte* base, size_t stride, int rank, int size) {
  madvise(base, stride * static_cast<size_t>(size), MADV_HUGEPAGE);
  std::byte* own = base + stride * static_cast<size_t>(rank);
  madvise(own, stride, MADV_POPULATE_WRITE);
  size_t all = stride * static_cast<size_t>(size);
  if (all <= kPopulateUpTo) madvise(base, all, MADV_POPULATE_WRITE);
}

}  // namespace

std::shared_ptr<void> Registry::add(const net::World& world, const net::Group& group, size_t bytes, Deadline deadline) {
  uint64_t id;
  {
    std::lock_guard lock(mutex_);
    id = next_++;
  }
  // one guard page between parts, so that an overrun does not reach a peer's data
  size_t stride = (bytes + kPage - 1) / kPage * kPage + kPage;
  auto size = static_cast<size_t>(group.size());
  auto segment =
      std::make_unique<net::SharedSegment>(world, group, fmt::format("memory-{}", id), stride * size, deadline);
  if (segment->bytes() != stride * size)
    throw CommError(CommError::Kind::mismatch, group.members[0],
                    fmt::format("allocate: rank {} requested {} bytes, this rank {}; expected equal sizes",
                                group.members[0], segment->bytes() / size - kPage, stride - kPage));
  populate(segment->data(), stride, group.rank, group.size());
  std::byte* base = segment->data();
  {
    std::lock_guard lock(mutex_);
    regions_[id] = {base, stride, group.rank};
  }
  auto forget = [self = weak_from_this(), id](net::SharedSegment* held) {
    if (auto registry = self.lock()) {
      std::lock_guard lock(registry->mutex_);
      registry->regions_.erase(id);
    }
    delete held;
  };
  std::shared_ptr<net::SharedSegment> holder(segment.release(), forget);
  return {holder, base + stride * static_cast<size_t>(group.rank)};
}

BufferAddress Registry::find(const void* data, size_t bytes) const {
  auto* at = static_cast<const std::byte*>(data);
  std::lock_guard lock(mutex_);
  for (auto& [id, region] : regions_) {
    std::byte* part = region.base + region.stride * static_cast<size_t>(region.rank);
    if (at >= part && at + bytes <= part + region.stride) return {id, static_cast<uint64_t>(at - part)};
  }
  return {0, reinterpret_cast<uint64_t>(data)};
}

std::byte* Registry::resolve(const BufferAddress& address, int member) const {
  std::lock_guard lock(mutex_);
  auto found = regions_.find(address.segment);
  if (found == regions_.end()) return nullptr;
  return found->second.base + found->second.stride * static_cast<size_t>(member) + address.at;
}

}  // namespace esp::comm
