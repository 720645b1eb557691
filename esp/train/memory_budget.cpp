#include "esp/train/memory_budget.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace esp::train {
namespace {

using device::MemoryCategory;
using device::MemoryTier;

double mib(uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

// «at least N» in MiB, rounded up to two digits.
std::string at_least(uint64_t bytes) {
  return fmt::format("at least {:.2f}", mib(bytes) + 0.01);
}

const nn::ParameterList::Unit& largest_unit(const nn::ParameterList& parameters) {
  return *std::max_element(parameters.units().begin(), parameters.units().end(),
                           [](const auto& a, const auto& b) { return a.count < b.count; });
}

// The settings that can still reduce device memory, as advice in messages.
std::vector<std::string> memory_savings(const RunConfig& config) {
  std::vector<std::string> ways;
  if (config.train.micro_batch > 1) ways.push_back("a smaller train.micro_batch");
  if (config.train.activations != "lean") ways.push_back("train.activations = \"lean\"");
  if (config.train.recompute != "full") ways.push_back("train.recompute = \"full\"");
  if (config.sync.offload == "none") ways.push_back("sync.offload = \"host\"");
  if (config.sync.method != "zero3" || config.sync.offload_params == "none")
    ways.push_back("sync.method = \"zero3\" with sync.offload_params = \"host\"");
  else if (config.sync.prefetch != 0)
    ways.push_back("sync.prefetch = 0");
  return ways;
}

std::string peaks(const device::MemoryAccount& account) {
  const auto peak = [&](MemoryCategory category) { return mib(account.use(category, MemoryTier::device).peak); };
  return fmt::format(
      "{:.2f} MiB of parameters, {:.2f} of gradients, {:.2f} of optimizer state, {:.2f} of activations, {:.2f} of "
      "buffers",
      peak(MemoryCategory::parameter), peak(MemoryCategory::gradient), peak(MemoryCategory::optimizer),
      peak(MemoryCategory::activation), peak(MemoryCategory::buffer));
}

std::string about(const RunConfig& config, const nn::ParameterList& parameters) {
  const auto& unit = largest_unit(parameters);
  const auto bytes = static_cast<uint64_t>(unit.count) * size_of(storage_type(config.train.precision));
  std::string text =
      fmt::format("the largest unit, {}, has {:.2f} MiB of parameters and as many of gradients", unit.name, mib(bytes));
  if (config.sync.method == "zero3")
    text += fmt::format(", the prefetch window of {} units up to {:.2f} MiB",
                        std::max<int64_t>(1, config.sync.prefetch + 1),
                        mib(bytes) * static_cast<double>(std::max<int64_t>(1, config.sync.prefetch + 1)));
  return text;
}

[[noreturn]] void refuse(const RunConfig& config, const std::string& why, const std::string& wanted) {
  const std::vector<std::string> ways = memory_savings(config);
  throw UsageError(fmt::format("run.device_memory_mb = {:.2f}: {}; set {}{}", config.run.device_memory_mb, why, wanted,
                               ways.empty() ? "" : fmt::format(", or {}", fmt::join(ways, ", or "))));
}

}  // namespace

uint64_t min_device_bytes(const RunConfig& config, const nn::ParameterList& parameters, int world) {
  const auto whole = static_cast<uint64_t>(parameters.count()),
             unit = static_cast<uint64_t>(largest_unit(parameters).count);
  const uint64_t share = whole / static_cast<uint64_t>(config.sync.group > 0 ? config.sync.group : world);
  const bool shares_gradients = config.sync.method == "zero2" || config.sync.method == "zero3";
  const uint64_t values = config.sync.method != "zero3"          ? whole
                          : config.sync.offload_params != "none" ? unit
                                                                 : share + unit;
  const uint64_t gradients = !shares_gradients ? whole : config.sync.offload != "none" ? unit : share + unit;
  return (values + gradients) * size_of(storage_type(config.train.precision));
}

void check_memory_budget(const RunConfig& config, const nn::ParameterList& parameters, int world) {
  const auto budget = static_cast<uint64_t>(config.run.device_memory_mb * (1 << 20));
  const uint64_t least = min_device_bytes(config, parameters, world);
  if (budget == 0 || least <= budget) return;
  refuse(config,
         fmt::format("parameters and gradients alone need {:.2f} MiB per rank, without activations; {}", mib(least),
                     about(config, parameters)),
         at_least(least));
}

void throw_if_over_budget(const RunConfig& config, const nn::ParameterList& parameters,
                          const device::MemoryAccount& account, const DeviceError& error, uint64_t need_bytes) {
  const uint64_t budget = account.budget(MemoryTier::device);
  if (budget == 0) {
    if (std::string_view(error.what()).find("out of memory") == std::string_view::npos) return;
    throw DeviceError(fmt::format("{}; peak memory: {}. To reduce memory: {}", error.what(), peaks(account),
                                  fmt::join(memory_savings(config), ", or ")));
  }
  refuse(config, fmt::format("{} (peak so far: {}); {}", error.what(), peaks(account), about(config, parameters)),
         need_bytes > budget ? at_least(need_bytes) : "more");
}

}  // namespace esp::train
