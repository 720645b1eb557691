// Checks before training whether the run fits the device memory budget (run.device_memory_mb).
#pragma once

#include "esp/base/error.h"
#include "esp/device/memory.h"
#include "esp/nn/parameter.h"
#include "esp/train/run_config.h"

namespace esp::train {

// Lower bound of a rank's device memory in bytes, for any batch size. Counts parameters and gradients as sync.method
// shards them. If they are offloaded, counts only the largest unit of each.
uint64_t min_device_bytes(const RunConfig& config, const nn::ParameterList& parameters, int world);

// Throws a UsageError if the budget is too small; it names the budget, the largest unit and settings that need less
// memory. No effect without a budget.
void check_memory_budget(const RunConfig& config, const nn::ParameterList& parameters, int world);
// Call after a failed allocation at the start of a run. With a budget, throws the same UsageError as
// check_memory_budget. Without one, throws a DeviceError with the peak memory by category if `error` is out of memory;
// returns after any other error. `need_bytes` is the memory that the run needs; 0: unknown.
void throw_if_over_budget(const RunConfig& config, const nn::ParameterList& parameters,
                          const device::MemoryAccount& account, const DeviceError& error, uint64_t need_bytes);

}  // namespace esp::train
