#include "esp/device/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/error.h"

namespace esp::device {
namespace {

constexpr std::string_view kCategoryNames[kNumCategories] = {"parameter",  "gradient", "optimizer",
                                                             "activation", "buffer",   "other"};
constexpr std::string_view kTierNames[kNumTiers] = {"device", "host", "file"};
constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

size_t at(MemoryCategory category) {
  return static_cast<size_t>(category);
}
size_t at(MemoryTier tier) {
  return static_cast<size_t>(tier);
}

void grow(MemoryUse& use, uint64_t bytes) {
  use.current += bytes;
  use.peak = std::max(use.peak, use.current);
}

}  // namespace

std::string_view name_of(MemoryCategory category) {
  return kCategoryNames[at(category)];
}
std::string_view name_of(MemoryTier tier) {
  return kTierNames[at(tier)];
}

void MemoryAccount::set_budget(MemoryTier tier, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  budgets_[at(tier)] = bytes;
}

uint64_t MemoryAccount::budget(MemoryTier tier) const {
  std::lock_guard lock(mutex_);
  return budgets_[at(tier)];
}

void MemoryAccount::add(MemoryCategory category, MemoryTier tier, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const uint64_t budget = budgets_[at(tier)], current = tiers_[at(tier)].current;
  if (budget != 0 && (current > budget || bytes > budget - current))
    throw DeviceError(fmt::format("{} memory on tier {}: over budget: {} bytes requested, {} in use, budget {}",
                                  name_of(category), name_of(tier), bytes, current, budget));
  grow(uses_[at(category)][at(tier)], bytes);
  grow(categories_[at(category)], bytes);
  grow(tiers_[at(tier)], bytes);
}

void MemoryAccount::remove(MemoryCategory category, MemoryTier tier, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  MemoryUse& use = uses_[at(category)][at(tier)];
  ESP_CHECK(use.current >= bytes, "{} memory on tier {}: {} bytes freed, but only {} in use", name_of(category),
            name_of(tier), bytes, use.current);
  use.current -= bytes;
  categories_[at(category)].current -= bytes;
  tiers_[at(tier)].current -= bytes;
}

MemoryUse MemoryAccount::use(MemoryCategory category, MemoryTier tier) const {
  std::lock_guard lock(mutex_);
  return uses_[at(category)][at(tier)];
}

MemoryUse MemoryAccount::use(MemoryCategory category) const {
  std::lock_guard lock(mutex_);
  return categories_[at(category)];
}

MemoryUse MemoryAccount::use(MemoryTier tier) const {
  std::lock_guard lock(mutex_);
  return tiers_[at(tier)];
}

void MemoryAccount::reset_peaks() {
  std::lock_guard lock(mutex_);
  for (auto& tiers : uses_)
    for (MemoryUse& use : tiers) use.peak = use.current;
  for (MemoryUse& use : categories_) use.peak = use.current;
  for (MemoryUse& use : tiers_) use.peak = use.current;
}

std::string MemoryAccount::describe(MemoryTier tier) const {
  std::lock_guard lock(mutex_);
  std::string text;
  for (MemoryCategory category : kAllCategories)
    if (const uint64_t bytes = uses_[at(category)][at(tier)].current)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(category), bytes);
  return text.empty() ? "nothing in use" : text;
}

Json MemoryAccount::snapshot() const {
  std::lock_guard lock(mutex_);
  Json all = Json::object();
  for (MemoryCategory category : kAllCategories) {
    const MemoryUse& use = categories_[at(category)];
    all[std::string(name_of(category))] = {{"current", use.current}, {"peak", use.peak}};
  }
  return all;
}

Json MemoryAccount::tiers_snapshot() const {
  std::lock_guard lock(mutex_);
  const auto text = [](const MemoryUse& use) { return Json{{"current", use.current}, {"peak", use.peak}}; };
  Json all = Json::object();
  for (MemoryTier tier : kAllTiers) {
    Json& one = all[std::string(name_of(tier))];
    for (MemoryCategory category : kAllCategories)
      one[std::string(name_of(category))] = text(uses_[at(category)][at(tier)]);
    one["total"] = text(tiers_[at(tier)]);
  }
  return all;
}

HostBuffer::HostBuffer(MemoryAccount& account, size_t bytes, AllocateOptions options)
    : bytes_(bytes), options_(options) {
  if (bytes == 0) return;
  account.add(options.category, options.tier, bytes);
  const size_t alignment = options.huge_pages && bytes >= kHugePage ? kHugePage : kAlignment;
  // aligned_alloc needs a multiple of the alignment. `rounded` is 0 if rounding up would overflow.
  const size_t rounded = bytes > SIZE_MAX - alignment ? 0 : (bytes + alignment - 1) / alignment * alignment;
  if (rounded) data_ = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (!data_) {
    account.remove(options.category, options.tier, bytes);
    throw DeviceError(fmt::format("{} memory on tier {}: out of memory, {} bytes requested", name_of(options.category),
                                  name_of(options.tier), bytes));
  }
  account_ = &account;
  // only a hint: if Linux has no huge pages free, it uses ordinary pages
  if (alignment == kHugePage) madvise(data_, rounded, MADV_HUGEPAGE);
  if (options.zero) std::memset(data_, 0, bytes);
}

HostBuffer::~HostBuffer() {
  release();
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : account_(std::exchange(other.account_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      options_(other.options_) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  account_ = std::exchange(other.account_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  options_ = other.options_;
  return *this;
}

void HostBuffer::release() noexcept {
  if (!account_) return;
  std::free(data_);
  account_->remove(options_.category, options_.tier, bytes_);
  account_ = nullptr;
}

}  // namespace esp::device
