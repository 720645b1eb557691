// One forward pass: what layers need beside their input. Made by the trainer for each micro-batch; layers only read it.
#pragma once

#include <cstdint>

#include "esp/autograd/tape.h"
#include "esp/base/rng.h"
#include "esp/kernel/dropout.h"

namespace esp::nn {

enum class Recompute : uint8_t { none, selective, full };

struct Pass {
  autograd::Tape* tape = nullptr;
  bool training = false;  // dropout is on
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_sequence = 0;  // global index, within the step's batch, of this micro-batch's first sequence
  Recompute recompute = Recompute::none;

  // The stream of random numbers of one dropout site: a function of seed, step and site, never of the split.
  kernel::DropoutKey dropout_key(uint64_t site) const {
    return {seed, (static_cast<uint64_t>(step) << 24) ^ (site + 1)};
  }
};

}  // namespace esp::nn
