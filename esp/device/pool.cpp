#include "esp/device/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::device {
namespace {

constexpr size_t kGrain = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallestSegment = size_t{4} << 20;
constexpr size_t kLargestSharedSegment = size_t{256} << 20;

size_t round_up(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

class HostMemory final : public SegmentSource {
 public:
  std::byte* take(size_t bytes) override {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    madvise(data, bytes, MADV_HUGEPAGE);  // advice only
    return static_cast<std::byte*>(data);
  }
  void give(std::byte* data, size_t bytes) noexcept override { munmap(data, bytes); }
  size_t grain() const override { return kGrain; }
  std::string state() const override { return "the system gave no more"; }
};

}  // namespace

SegmentSource& host_memory() {
  static HostMemory memory;  // holds nothing
  return memory;
}

MemoryPool::MemoryPool(MemoryAccount& account, MemoryTier tier, SegmentSource& source)
    : account_(account), tier_(tier), source_(source) {}

MemoryPool::~MemoryPool() {
  for (const PoolSegment& segment : segments_) source_.give(segment.data, segment.bytes);
}

// Bins are a quarter of a power of two wide, so a piece of the next bin up always fits.
int MemoryPool::bin_of(size_t room) {
  const size_t grains = room / kGrain;
  if (grains < 4) return static_cast<int>(grains);
  const int high = std::bit_width(grains) - 1;
  return std::min(kNumBins - 1, (high - 1) * 4 + static_cast<int>((grains >> (high - 2)) & 3));
}

MemoryPool::PoolBlock* MemoryPool::take(size_t bytes, MemoryCategory category) {
  constexpr size_t kMostBytes = size_t{1} << 46;  // no machine has as much, and no bin is as wide
  account_.add(category, tier_, bytes);
  std::lock_guard lock(mutex_);
  const size_t room = round_up(std::max(bytes, size_t{1}), source_.grain());
  PoolBlock* piece = bytes < kMostBytes ? find(room) : nullptr;
  if (!piece) {
    piece = bytes < kMostBytes ? add_segment(room) : nullptr;
    if (!piece) {
      account_.remove(category, tier_, bytes);
      throw DeviceError(fmt::format(
          "out of memory: {} bytes of {} memory on tier {} requested, {} ({} reserved, {} allocated: {})", bytes,
          name_of(category), name_of(tier_), source_.state(), reserved_, lent_, account_.words(tier_)));
    }
  }
  unlink(piece);
  split(piece, room);
  piece->lent = true;
  piece->bytes = bytes;
  piece->category = category;
  piece->refs.store(1, std::memory_order_relaxed);
  lent_ += piece->room;
  return piece;
}

void MemoryPool::give(PoolBlock* piece) noexcept {
  account_.remove(piece->category, tier_, piece->bytes);
  std::lock_guard lock(mutex_);
  lent_ -= piece->room;
  piece->lent = false;
  if (PoolBlock* after = piece->after; after && !after->lent) {
    unlink(after);
    piece->room += after->room;
    piece->after = after->after;
    if (piece->after) piece->after->before = piece;
    retire(after);
  }
  if (PoolBlock* before = piece->before; before && !before->lent) {
    unlink(before);
    before->room += piece->room;
    before->after = piece->after;
    if (before->after) before->after->before = before;
    retire(piece);
    piece = before;
  }
  link(piece);
}

// The smallest that fits in its own bin, else the smallest of the next bin that holds any.
MemoryPool::PoolBlock* MemoryPool::find(size_t room) {
  for (int bin = bin_of(room); bin < kNumBins; ++bin) {
    PoolBlock* best = nullptr;
    for (PoolBlock* piece = bins_[static_cast<size_t>(bin)]; piece; piece = piece->next_free)
      if (piece->room >= room &&
          (!best || piece->room < best->room || (piece->room == best->room && piece->data < best->data)))
        best = piece;
    if (best) return best;
  }
  return nullptr;
}

// Segments double, so a large model has few; a request larger than any of them gets one of its own size.
MemoryPool::PoolBlock* MemoryPool::add_segment(size_t room) {
  size_t bytes =
      std::clamp(std::bit_ceil(static_cast<size_t>(reserved_ / 2) + 1), kSmallestSegment, kLargestSharedSegment);
  if (room > bytes / 2) bytes = room;
  bytes = round_up(bytes, kHugePage);
  std::byte* data = source_.take(bytes);
  if (!data) return nullptr;
  reserved_ += bytes;
  PoolBlock* piece = fresh();
  piece->data = data;
  piece->room = bytes;
  segments_.push_back({piece->data, bytes, piece});
  link(piece);
  return piece;
}

void MemoryPool::split(PoolBlock* piece, size_t room) {
  if (piece->room == room) return;
  PoolBlock* rest = fresh();
  rest->data = piece->data + room;
  rest->room = piece->room - room;
  rest->before = piece;
  rest->after = piece->after;
  if (rest->after) rest->after->before = rest;
  piece->after = rest;
  piece->room = room;
  link(rest);
}

void MemoryPool::link(PoolBlock* piece) {
  PoolBlock*& head = bins_[static_cast<size_t>(bin_of(piece->room))];
  piece->previous_free = nullptr;
  piece->next_free = head;
  if (head) head->previous_free = piece;
  head = piece;
}

void MemoryPool::unlink(PoolBlock* piece) {
  if (piece->previous_free) {
    piece->previous_free->next_free = piece->next_free;
  } else {
    bins_[static_cast<size_t>(bin_of(piece->room))] = piece->next_free;
  }
  if (piece->next_free) piece->next_free->previous_free = piece->previous_free;
  piece->previous_free = piece->next_free = nullptr;
}

MemoryPool::PoolBlock* MemoryPool::fresh() {
  PoolBlock* piece;
  if (spare_headers_.empty()) {
    piece = &headers_.emplace_back();
    spare_headers_.reserve(headers_.size());  // so that retiring never allocates
  } else {
    piece = spare_headers_.back();
    spare_headers_.pop_back();
  }
  piece->pool = this;
  piece->lent = false;
  piece->before = piece->after = nullptr;
  return piece;
}

void MemoryPool::retire(PoolBlock* piece) {
  spare_headers_.push_back(piece);
}

uint64_t MemoryPool::reserved_bytes() const {
  std::lock_guard lock(mutex_);
  return reserved_;
}

uint64_t MemoryPool::allocated_bytes() const {
  std::lock_guard lock(mutex_);
  return lent_;
}

void MemoryPool::trim() {
  std::lock_guard lock(mutex_);
  std::erase_if(segments_, [this](const PoolSegment& segment) {
    if (segment.first->lent || segment.first->room != segment.bytes) return false;
    unlink(segment.first);
    retire(segment.first);
    source_.give(segment.data, segment.bytes);
    reserved_ -= segment.bytes;
    return true;
  });
}

}  // namespace esp::device
