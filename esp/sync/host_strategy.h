// Strategy adapter: the model computes on a GPU, and the strategy works in host memory. Used for compressed gradients,
// ZeRO++, parameter servers and fused buckets.
//
// The host's parameter list holds the weights, the gradients and the strategy's state, and the optimizer runs on the
// CPU. The device's list holds a copy for computing. Weights are uploaded at the first pass of a step and at every pass
// of an evaluation. Gradients accumulate on the device over the micro-batches of a step. After the last micro-batch
// they are downloaded, the last layer first, and each is reported to the strategy as it arrives. So the strategy sees
// one pass per step.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

// `inner` works on `host`, and the device can copy from and to the memory of `host`. Both lists describe the same model
// and outlive the strategy.
std::unique_ptr<Strategy> make_host_strategy(std::unique_ptr<Strategy> inner, nn::ParameterList& host,
                                             nn::ParameterList& device, const tensor::Context& context, DType storage);

}  // namespace esp::sync
