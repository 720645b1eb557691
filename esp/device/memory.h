// Memory accounting: every allocation has a category and a tier, and the account tracks current and peak bytes of each.
// A budget per tier makes an allocation fail with an error before the machine runs out.
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

// Without accelerators, device memory is host memory; `device` then means "used in the step".
enum class MemoryTier : uint8_t { device, host, file };
inline constexpr int kNumTiers = 3;
inline constexpr MemoryTier kAllTiers[kNumTiers] = {MemoryTier::device, MemoryTier::host, MemoryTier::file};
std::string_view name_of(MemoryTier tier);

struct MemoryUse {
  uint64_t current = 0, peak = 0;
};

class MemoryAccount {
 public:
  // Applies to later allocations; 0: no limit.
  void set_budget(MemoryTier tier, uint64_t bytes);
  uint64_t budget(MemoryTier tier) const;

  // DeviceError with category, requested bytes, current bytes and the budget if they would not fit.
  void add(MemoryCategory category, MemoryTier tier, uint64_t bytes);
  void remove(MemoryCategory category, MemoryTier tier, uint64_t bytes);

  MemoryUse use(MemoryCategory category, MemoryTier tier) const;
  MemoryUse use(MemoryCategory category) const;  // over all tiers
  MemoryUse use(MemoryTier tier) const;          // over all categories; peak of the sum at one instant
  void reset_peaks();                            // peaks restart at the current values

  // "parameter 12, gradient 12, …": current bytes of a tier, non-zero categories only.
  std::string words(MemoryTier tier) const;
  // {"parameter": {"current": …, "peak": …}, …} over all tiers, in the order of kAllCategories.
  Json snapshot() const;
  // The same by tier: {"device": {"parameter": …, "total": …}, "host": …, "file": …}.
  Json tiers_snapshot() const;

 private:
  mutable std::mutex mutex_;  // guards everything below
  std::array<std::array<MemoryUse, kNumTiers>, kNumCategories> uses_{};
  std::array<MemoryUse, kNumCategories> categories_{};
  std::array<MemoryUse, kNumTiers> tiers_{};
  std::array<uint64_t, kNumTiers> budgets_{};
};

struct AllocateOptions {
  MemoryCategory category = MemoryCategory::other;
  MemoryTier tier = MemoryTier::host;
  bool huge_pages = false;  // madvise hint, for large long-lived buffers
  bool zero = false;
};

// Host memory at 64-byte alignment, given back to its account when destroyed. Movable, owned by one.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(MemoryAccount& account, size_t bytes, AllocateOptions options = {});  // DeviceError
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
