// Memory with an account: every allocation says what it is for and where it lies, and the account knows the present and
// the highest bytes of each. A budget per tier makes an allocation fail with words before the machine fails without.
//
// A MemoryAccount belongs to a rank and outlives its allocations. Any thread may allocate and free.
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

// On a machine without accelerators the compute device's memory is the host's: `device` then means "used in the step".
enum class MemoryTier : uint8_t { device, host, file };
inline constexpr int kNumTiers = 3;
inline constexpr MemoryTier kAllTiers[kNumTiers] = {MemoryTier::device, MemoryTier::host, MemoryTier::file};
std::string_view name_of(MemoryTier tier);

struct MemoryUse {
  uint64_t current = 0, peak = 0;
};

class MemoryAccount {
 public:
  // Takes effect for later allocations; 0 is no limit.
  void set_budget(MemoryTier tier, uint64_t bytes);
  uint64_t budget(MemoryTier tier) const;

  // DeviceError naming category, bytes asked, present bytes and the budget when they would not fit.
  void add(MemoryCategory category, MemoryTier tier, uint64_t bytes);
  void remove(MemoryCategory category, MemoryTier tier, uint64_t bytes);

  MemoryUse use(MemoryCategory category, MemoryTier tier) const;
  MemoryUse use(MemoryCategory category) const;  // over all tiers
  MemoryUse use(MemoryTier tier) const;          // over all categories; its peak is of the sum, at one instant
  void reset_peaks();                            // peaks begin again from the present

  // "parameter 12, gradient 12, …": present bytes on a tier, of what has any.
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
  bool huge_pages = false;  // advice to the kernel; pays for large buffers that live long
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
