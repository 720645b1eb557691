// Runs attention over one sequence that is divided over ranks (threads of this process). Records for each rank: the
// compute at each ring step (from the trace), the bytes sent (from the communicator), and the peak memory (from the
// allocator).
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

// Results of one rank. In the arrays of two, index 0 is forward and 1 backward.
struct ContextRank {
  nn::TokenMap tokens;
  std::vector<int64_t> pairs[2];   // indexed by step of the ring: number of (query, key) pairs
  std::vector<double> step_ms[2];  // indexed by step of the ring: duration
  uint64_t sent[2] = {0, 0};       // bytes
  double ms[2] = {0, 0}, waited_ms = 0;
  uint64_t peak_bytes = 0;  // includes input, output and gradients
};

struct ContextRun {
  std::string name;
  std::vector<ContextRank> ranks;
  double error = 0;  // relative L2 difference of outputs and gradients from those of one device
};

enum class ContextMethod : uint8_t { ring, ulysses };

// All ranks run forward and backward `rounds` times. The times of a rank are those of its fastest round.
ContextRun run_context(const ContextCase& spec, ContextMethod method, parallel::ContextLayout layout, int rounds);
ContextRank run_on_one(const ContextCase& spec, int rounds);

}  // namespace esp::app
