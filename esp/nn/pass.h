// One forward pass: what layers need beside their input. Made by the trainer for each micro-batch; layers only read it.
#pragma once

#include <cstdint>

#include "esp/autograd/tape.h"
#include "esp/base/rng.h"
#include "esp/kernel/dropout.h"
#include "esp/nn/share.h"

namespace esp::nn {

class Regions;            // regions.h
struct RoutingReport;     // moe/report.h
const Regions& on_one();  // the regions of a model that one holder has whole

enum class Recompute : uint8_t { none, selective, full };

struct Pass {
  autograd::Tape* tape = nullptr;
  bool training = false;  // dropout is on
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_sequence = 0;        // global index, within the step's batch, of this micro-batch's first sequence
  int64_t num_sequences = 0;         // in this micro-batch; needed where the stream is divided by its rows
  const TokenMap* tokens = nullptr;  // which of each sequence are held; null: all
  const Regions* regions = &on_one();
  Recompute recompute = Recompute::none;
  int64_t recompute_layers = -1;     // of each run of blocks the first so many; −1: all
  double router_scale = 0;           // of routers' own losses per token: the loss scale / tokens of the whole batch
  RoutingReport* routing = nullptr;  // where routers say what they did; may be null

  // The stream of random numbers of one dropout site: a function of seed, step and site, never of the split.
  kernel::DropoutKey dropout_key(uint64_t site) const {
    return {seed, (static_cast<uint64_t>(step) << 24) ^ (site + 1)};
  }
};

}  // namespace esp::nn
