// Attention over one sequence shared by ranks, run by threads of this process: per rank the compute at each step of the
// ring (from its trace), bytes sent (from its communicator) and memory (from its account).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "esp/base/dtype.h"
#include "esp/parallel/cp/tokens.h"

namespace esp::app {

struct ContextCase {
  int num_ranks = 4;
  int64_t batch = 1, length = 2048, heads = 4, kv_heads = 4, head_dim = 32;
  bool causal = true;
  DType dtype = DType::f32;
};

// Index 0 is forward, 1 backward.
struct ContextRank {
  nn::TokenMap tokens;
  std::vector<int64_t> pairs[2];   // by step of the ring: (query, key) pairs
  std::vector<double> step_ms[2];  // and their duration
  uint64_t sent[2] = {0, 0};
  double ms[2] = {0, 0}, waited_ms = 0;
  uint64_t peak_bytes = 0;  // including input, output and gradients
};

struct ContextRun {
  std::string name;
  std::vector<ContextRank> ranks;
  double error = 0;  // of outputs and gradients against one device, relative L2
};

enum class ContextMethod : uint8_t { ring, ulysses };

// All ranks run forward and backward `rounds` times; times are those of each rank's fastest round.
ContextRun run_context(const ContextCase& it, ContextMethod method, parallel::ContextLayout layout, int rounds);
ContextRank run_on_one(const ContextCase& it, int rounds);

}  // namespace esp::app
