// Memory accounting: every allocation has a category and a tier, and a MemoryAccount tracks current and peak bytes for
// each of them. A tier can have a budget: an allocation over the budget throws before the machine runs out of memory.
//
// A MemoryAccount belongs to a rank and outlives its allocations. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "esp/base/json.h"

namespace esp::device {

enum class MemoryCategory : uint8_t { parameter, gradient, optimizer, activation, buffer, other };
inline constexpr int kNumCategories = 6;
inline constexpr MemoryCategory kAllCategories[kNumCategories] = {MemoryCategory::parameter, MemoryCategory::gradient,
                                                                  MemoryCategory::optimizer, MemoryCategory::activation,
                                                                  MemoryCategory::buffer,    MemoryCategory::other};
std::string_view name_of(MemoryCategory category);

// Without a GPU, device memory is host memory. `device` then means memory that the training step uses.
enum class MemoryTier : uint8_t { device, host, file };
inline constexpr int kNumTiers = 3;
inline constexpr MemoryTier kAllTiers[kNumTiers] = {MemoryTier::device, MemoryTier::host, MemoryTier::file};
std::string_view name_of(MemoryTier tier);

struct MemoryUse {
  uint64_t current = 0, peak = 0;
};

class MemoryAccount {
 public:
  // Limits later allocations on this tier; 0: no limit.
  void set_budget(MemoryTier tier, uint64_t bytes);
  uint64_t budget(MemoryTier tier) const;

  // Throws a DeviceError if the allocation exceeds the budget. The message names the category, the requested bytes, the
  // current bytes and the budget.
  void add(MemoryCategory category, MemoryTier tier, uint64_t bytes);
  void remove(MemoryCategory category, MemoryTier tier, uint64_t bytes);

  MemoryUse use(MemoryCategory category, MemoryTier tier) const;
  MemoryUse use(MemoryCategory category) const;  // sum over all tiers
  // sum over all categories; `peak` is the maximum of this sum over time, not the sum of the peaks
  MemoryUse use(MemoryTier tier) const;
  void reset_peaks();  // sets every peak to the current value

  // "parameter 12, gradient 12, …": current bytes of each category on a tier; categories with 0 bytes are omitted.
  std::string describe(MemoryTier tier) const;
  // {"parameter": {"current": …, "peak": …}, …} over all tiers, in the order of kAllCategories.
  Json snapshot() const;
  // The same figures by tier: {"device": {"parameter": …, "total": …}, "host": …, "file": …}.
  Json tiers_snapshot() const;

 private:
  mutable std::mutex mutex_;  // guards the members below
  std::array<std::array<MemoryUse, kNumTiers>, kNumCategories> uses_{};
  std::array<MemoryUse, kNumCategories> categories_{};
  std::array<MemoryUse, kNumTiers> tiers_{};
  std::array<uint64_t, kNumTiers> budgets_{};
};

struct AllocateOptions {
  MemoryCategory category = MemoryCategory::other;
  MemoryTier tier = MemoryTier::host;
  bool huge_pages = false;  // requests huge pages from Linux (madvise), for large long-lived buffers
  bool zero = false;
};

// Host memory with 64-byte alignment; the destructor frees it and updates the MemoryAccount. Move-only.
class HostBuffer {
 public:
  HostBuffer() = default;
  // throws DeviceError if the allocation exceeds the budget or the machine is out of memory
  HostBuffer(MemoryAccount& account, size_t bytes, AllocateOptions options = {});
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void release() noexcept;

  MemoryAccount* account_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  AllocateOptions options_;
};

}  // namespace esp::device
