// Context of one forward pass: what layers need besides their input. Created by the trainer for each micro-batch;
// layers only read it.
#pragma once

#include <cstdint>

#include "esp/autograd/tape.h"
#include "esp/base/rng.h"
#include "esp/kernel/dropout.h"
#include "esp/nn/shard.h"

namespace esp::nn {

class ParallelOps;                       // regions.h
struct RoutingReport;                    // moe/report.h
const ParallelOps& single_device_ops();  // without any parallelism

enum class RecomputeMode : uint8_t { none, selective, full };

struct ForwardContext {
  autograd::Tape* tape = nullptr;
  bool training = false;  // dropout is on
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_sequence = 0;        // global index, within the step's batch, of this micro-batch's first sequence
  int64_t num_sequences = 0;         // in this micro-batch; needed under sequence parallelism
  const TokenMap* tokens = nullptr;  // local tokens of each sequence; null: all
  const ParallelOps* ops = &single_device_ops();
  RecomputeMode recompute = RecomputeMode::none;
  int64_t recompute_layers = -1;     // the first n blocks of each run; −1: all
  double router_scale = 0;           // of router losses per token: loss scale / tokens of the whole batch
  RoutingReport* routing = nullptr;  // routing statistics; may be null

  // Random stream of a dropout site: a function of seed, step and site, independent of the partition.
  kernel::DropoutKey dropout_key(uint64_t site) const {
    return {seed, (static_cast<uint64_t>(step) << 24) ^ (site + 1)};
  }
};

}  // namespace esp::nn
