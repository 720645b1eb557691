// A chain of GEMMs y = Wₙ···W₁x on t ranks (tensor parallelism). Each matrix is sharded by outputs (column parallel),
// sharded by inputs (row parallel), or replicated. plan_chain computes the communication of each choice; run_chain
// executes it.
//
// x [d₀, b] and y are replicated. A matrix sharded by outputs reads the whole input and produces a shard of the output.
// A matrix sharded by inputs reads a shard and produces a partial sum. A replicated matrix reads and produces whole
// tensors. Conversions between matrices: shard to whole is an all-gather, partial sum to whole an all-reduce, partial
// sum to shard a reduce-scatter; whole to shard needs no communication.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "esp/parallel/tp/tp_communicator.h"

namespace esp::parallel {

enum class MatrixSharding : uint8_t { out, in, whole };
std::string_view name_of(MatrixSharding cut);

struct ChainCollective {
  int after = 0;  // number of the matrix, from 1, whose result the collective converts
  comm::Op op = comm::Op::all_gather;
  int64_t elements = 0;  // number of elements of the whole tensor
};

struct ChainPlan {
  std::vector<int64_t> widths;  // d₀ … dₙ
  int64_t columns = 1;          // b
  int ranks = 1;
  std::vector<MatrixSharding> cuts;
  std::vector<ChainCollective> moves;

  // Number of elements that all ranks together send: (t−1)·elements for an all-gather or a reduce-scatter, twice that
  // for an all-reduce.
  int64_t elements_sent() const;
  int64_t weights_held() const;   // largest number of matrix elements on a rank
  bool shards_all() const;        // no matrix is replicated
  std::string text() const;       // e.g. "out in in"
  std::string cost_text() const;  // e.g. "(t−1)/t·b·(d₂ + 2d₃)": elements sent per rank
};

ChainPlan plan_chain(std::span<const int64_t> widths, int64_t columns, int ranks, std::vector<MatrixSharding> cuts);
// All combinations of the choices per matrix, sorted by communication, then by memory (least first).
std::vector<ChainPlan> all_chains(std::span<const int64_t> widths, int64_t columns, int ranks);

// Runs the chain on the ranks of `tp_comm` (null: one rank) in fp64 and returns y. The elements of the matrices and of
// x are functions of their indices. Widths must be divisible by the number of ranks.
tensor::Tensor run_chain(const tensor::Context& context, TpCommunicator* tp_comm, const ChainPlan& plan);

}  // namespace esp::parallel
