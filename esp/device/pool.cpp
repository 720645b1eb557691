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
    madvise(data, bytes, MADV_HUGEPAGE);  // only a hint; failure has no effect
    return static_cast<std::byte*>(data);
  }
  void give(std::byte* data, size_t bytes) noexcept override { munmap(data, bytes); }
  size_t grain() const override { return kGrain; }
  std::string state() const override { return "the operating system refused to allocate more memory"; }
};

}  // namespace

SegmentSource& host_memory() {
  static HostMemory memory;  // one object serves all pools, because it has no state
  return memory;
}

MemoryPool::MemoryPool(MemoryAccount& account, MemoryTier tier, SegmentSource& source)
    : account_(account), tier_(tier), source_(source) {}

MemoryPool::~MemoryPool() {
  for (const PoolSegment& segment : segments_) source_.give(segment.data, segment.bytes);
}

// Index of the free list (bin) for blocks of this capacity. Each power of two has four bins, so any block of the next
// larger bin is large enough.
int MemoryPool::bin_of(size_t capacity) {
  const size_t grains = capacity / kGrain;
  if (grains < 4) return static_cast<int>(grains);
  const int high = std::bit_width(grains) - 1;
  return std::min(kNumBins - 1, (high - 1) * 4 + static_cast<int>((grains >> (high - 2)) & 3));
}

MemoryPool::PoolBlock* MemoryPool::take(size_t bytes, MemoryCategory category) {
  constexpr size_t kMaxBlockBytes = size_t{1} << 46;  // more than any machine has, and less than the bins can represent
  account_.add(category, tier_, bytes);
  std::lock_guard lock(mutex_);
  const size_t capacity = round_up(std::max(bytes, size_t{1}), source_.grain());
  PoolBlock* block = bytes < kMaxBlockBytes ? find(capacity) : nullptr;
  if (!block) {
    block = bytes < kMaxBlockBytes ? add_segment(capacity) : nullptr;
    if (!block) {
      account_.remove(category, tier_, bytes);
      throw DeviceError(fmt::format(
          "out of memory: {} bytes of {} memory requested on tier {}; {} (the pool has {} bytes reserved, {} bytes "
          "allocated; bytes in use: {})",
          bytes, name_of(category), name_of(tier_), source_.state(), reserved_, allocated_, account_.describe(tier_)));
    }
  }
  unlink(block);
  split(block, capacity);
  block->allocated = true;
  block->bytes = bytes;
  block->category = category;
  block->refs.store(1, std::memory_order_relaxed);
  allocated_ += block->capacity;
  return block;
}

void MemoryPool::give(PoolBlock* block) noexcept {
  account_.remove(block->category, tier_, block->bytes);
  std::lock_guard lock(mutex_);
  allocated_ -= block->capacity;
  block->allocated = false;
  if (PoolBlock* after = block->after; after && !after->allocated) {
    unlink(after);
    block->capacity += after->capacity;
    block->after = after->after;
    if (block->after) block->after->before = block;
    recycle_header(after);
  }
  if (PoolBlock* before = block->before; before && !before->allocated) {
    unlink(before);
    before->capacity += block->capacity;
    before->after = block->after;
    if (before->after) before->after->before = before;
    recycle_header(block);
    block = before;
  }
  link(block);
}

// Best fit: the smallest block of the request's bin that is large enough, else the smallest block of the next non-empty
// bin.
MemoryPool::PoolBlock* MemoryPool::find(size_t capacity) {
  for (int bin = bin_of(capacity); bin < kNumBins; ++bin) {
    PoolBlock* best = nullptr;
    for (PoolBlock* block = bins_[static_cast<size_t>(bin)]; block; block = block->next_free)
      if (block->capacity >= capacity && (!best || block->capacity < best->capacity ||
                                          (block->capacity == best->capacity && block->data < best->data)))
        best = block;
    if (best) return best;
  }
  return nullptr;
}

// Segment sizes double, so a large model has few segments. A request larger than half of the next segment gets a new
// segment of exactly the requested size.
MemoryPool::PoolBlock* MemoryPool::add_segment(size_t capacity) {
  size_t bytes =
      std::clamp(std::bit_ceil(static_cast<size_t>(reserved_ / 2) + 1), kSmallestSegment, kLargestSharedSegment);
  if (capacity > bytes / 2) bytes = capacity;
  bytes = round_up(bytes, kHugePage);
  std::byte* data = source_.take(bytes);
  if (!data) return nullptr;
  reserved_ += bytes;
  PoolBlock* block = new_header();
  block->data = data;
  block->capacity = bytes;
  segments_.push_back({block->data, bytes, block});
  link(block);
  return block;
}

void MemoryPool::split(PoolBlock* block, size_t capacity) {
  if (block->capacity == capacity) return;
  PoolBlock* rest = new_header();
  rest->data = block->data + capacity;
  rest->capacity = block->capacity - capacity;
  rest->before = block;
  rest->after = block->after;
  if (rest->after) rest->after->before = rest;
  block->after = rest;
  block->capacity = capacity;
  link(rest);
}

void MemoryPool::link(PoolBlock* block) {
  PoolBlock*& head = bins_[static_cast<size_t>(bin_of(block->capacity))];
  block->previous_free = nullptr;
  block->next_free = head;
  if (head) head->previous_free = block;
  head = block;
}

void MemoryPool::unlink(PoolBlock* block) {
  if (block->previous_free) {
    block->previous_free->next_free = block->next_free;
  } else {
    bins_[static_cast<size_t>(bin_of(block->capacity))] = block->next_free;
  }
  if (block->next_free) block->next_free->previous_free = block->previous_free;
  block->previous_free = block->next_free = nullptr;
}

MemoryPool::PoolBlock* MemoryPool::new_header() {
  PoolBlock* block;
  if (spare_headers_.empty()) {
    block = &headers_.emplace_back();
    spare_headers_.reserve(headers_.size());  // so that recycle_header never allocates
  } else {
    block = spare_headers_.back();
    spare_headers_.pop_back();
  }
  block->pool = this;
  block->allocated = false;
  block->before = block->after = nullptr;
  return block;
}

void MemoryPool::recycle_header(PoolBlock* block) {
  spare_headers_.push_back(block);
}

uint64_t MemoryPool::reserved_bytes() const {
  std::lock_guard lock(mutex_);
  return reserved_;
}

uint64_t MemoryPool::allocated_bytes() const {
  std::lock_guard lock(mutex_);
  return allocated_;
}

void MemoryPool::trim() {
  std::lock_guard lock(mutex_);
  std::erase_if(segments_, [this](const PoolSegment& segment) {
    if (segment.first->allocated || segment.first->capacity != segment.bytes) return false;
    unlink(segment.first);
    recycle_header(segment.first);
    source_.give(segment.data, segment.bytes);
    reserved_ -= segment.bytes;
    return true;
  });
}

}  // namespace esp::device
