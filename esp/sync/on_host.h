// Strategy adapter for a model that computes on a GPU with a strategy that works in host memory: compressed gradients,
// ZeRO++, parameter servers, fused buckets.
//
// The host's parameter list holds the weights, the gradients and the strategy's state, and the optimizer runs on the
// CPU; the device's list holds a copy for computing. Weights are uploaded at the first pass of a step and at every pass
// of an evaluation. Gradients accumulate on the device over a step's micro-batches and are downloaded when the last has
// run, the last layer first; each is reported to the strategy as it arrives, so the strategy sees one pass per step.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

// `inner` works on `host`, whose memory the device can copy from and to; both lists describe the same model and outlive
// the strategy.
std::unique_ptr<Strategy> make_on_host(std::unique_ptr<Strategy> inner, nn::ParameterList& host,
                                       nn::ParameterList& device, const tensor::Context& context, DType storage);

}  // namespace esp::sync
