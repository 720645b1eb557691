// Attention over one sequence that ranks share, really run between threads of this process: what each rank computed at
// each step of the ring (from its trace), sent (from its communicator) and held (from its memory account).
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
  std::vector<int64_t> pairs[2];   // by step of the ring: of a query and a key it sees
  std::vector<double> step_ms[2];  // and how long that took
  uint64_t sent[2] = {0, 0};
  double ms[2] = {0, 0}, waited_ms = 0;
  uint64_t peak_bytes = 0;  // input, output and gradients included
};

struct ContextRun {
  std::string name;
  std::vector<ContextRank> ranks;
  double error = 0;  // of outputs and gradients against one device, relative L2
};

enum class ContextMethod : uint8_t { ring, ulysses };

// All ranks run forward and backward `rounds` times; times are of each one's fastest round.
ContextRun run_context(const ContextCase& it, ContextMethod method, parallel::ContextLayout layout, int rounds);
ContextRank run_on_one(const ContextCase& it, int rounds);

}  // namespace esp::app
