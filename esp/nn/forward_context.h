// Context of one forward pass: everything that layers need besides their input. The trainer creates one for each
// micro-batch; layers only read it.
#pragma once

#include <cstdint>

#include "esp/autograd/tape.h"
#include "esp/base/rng.h"
#include "esp/kernel/dropout.h"
#include "esp/nn/shard.h"

namespace esp::nn {

class ParallelOps;                       // nn/parallel_ops.h
struct RoutingReport;                    // nn/moe/routing_report.h
const ParallelOps& single_device_ops();  // the operations of a single device, without parallelism

// Activation checkpointing: which activations backward recomputes instead of loading them from memory.
enum class RecomputeMode : uint8_t { none, selective, full };

struct ForwardContext {
  autograd::Tape* tape = nullptr;
  bool training = false;  // enables dropout
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_sequence = 0;        // index of the first sequence of this micro-batch in the batch of the step
  int64_t num_sequences = 0;         // number of sequences in this micro-batch; needed under sequence parallelism
  const TokenMap* tokens = nullptr;  // which tokens of each sequence are local; null: all tokens
  const ParallelOps* ops = &single_device_ops();
  RecomputeMode recompute = RecomputeMode::none;
  int64_t recompute_layers = -1;  // number of blocks to recompute at the start of each pipeline chunk; −1: all
  double router_scale = 0;  // weight of the router losses per token: loss scale / number of tokens of the whole batch
  RoutingReport* routing = nullptr;  // receives routing statistics; may be null

  // Random stream of a dropout site: a function of seed, step and site, independent of the parallel layout.
  kernel::DropoutKey dropout_key(uint64_t site) const {
    return {seed, (static_cast<uint64_t>(step) << 24) ^ (site + 1)};
  }
};

}  // namespace esp::nn
