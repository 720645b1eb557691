// Whether a run fits the device's memory that run.device_memory_mb allows it, said in words before anything is trained.
#pragma once

#include "esp/base/error.h"
#include "esp/device/memory.h"
#include "esp/nn/parameter.h"
#include "esp/train/run_config.h"

namespace esp::train {

// The least a rank keeps on the device, whatever the batch: values and gradients as sync.method shares them, or the
// largest unit of both where they lie elsewhere.
uint64_t least_device_bytes(const RunConfig& config, const nn::ParameterList& parameters, int world);

// UsageError: the budget, the largest unit, and what would fit. Nothing without a budget.
void check_budget(const RunConfig& config, const nn::ParameterList& parameters, int world);
// The same of an allocation that did not fit the budget when a run began; nothing where there is none. `need_bytes` is
// what the run takes, 0 where that is not known.
void throw_if_over_budget(const RunConfig& config, const nn::ParameterList& parameters,
                          const device::MemoryAccount& account, const DeviceError& error, uint64_t need_bytes);

}  // namespace esp::train
