// A strategy for a model that computes on a GPU while its copies agree on the host: for what is coded and sent from the
// host's memory alone (compressed gradients, ZeRO++, parameter servers, buckets fused by cycles).
//
// The host's list has the values, the gradients and everything the strategy keeps, and the optimizer steps there, just
// as on a processor; the device's list has a copy to compute with. Values go up at the first pass of a step and at
// every pass of an evaluation. Gradients gather on the device over a step's micro-batches and come down when the last
// has run, the last layer's first, each told to the strategy as it arrives: to it a step is one pass.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

// `inner` is over `host`, whose memory the device can copy from and to; both lists are of the same model, and outlive
// the strategy.
std::unique_ptr<Strategy> make_on_host(std::unique_ptr<Strategy> inner, nn::ParameterList& host,
                                       nn::ParameterList& device, const tensor::Context& context, DType storage);

}  // namespace esp::sync
