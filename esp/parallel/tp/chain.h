// A chain of matrices y = Wₙ···W₁x over t ranks, each sharded by outputs, by inputs, or replicated: the communication
// of each choice, and an implementation that runs it.
//
// x [d₀, b] is replicated and y must be. A matrix sharded by outputs reads the whole input and produces a shard of the
// output; one sharded by inputs reads a shard and produces a partial sum; a replicated one reads and produces
// everything. Conversions between matrices: shard to whole is an all-gather, partial sum to whole an all-reduce,
// partial sum to shard a reduce-scatter; whole to shard is free.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "esp/parallel/tp/tp_communicator.h"

namespace esp::parallel {

enum class MatrixCut : uint8_t { out, in, whole };
std::string_view name_of(MatrixCut cut);

struct ChainMove {
  int after = 0;  // matrix number, from 1
  comm::Op op = comm::Op::all_gather;
  int64_t elements = 0;  // of the whole tensor
};

struct ChainPlan {
  std::vector<int64_t> widths;  // d₀ … dₙ
  int64_t columns = 1;          // b
  int ranks = 1;
  std::vector<MatrixCut> cuts;
  std::vector<ChainMove> moves;

  // Sum over all ranks: (t−1)·elements for a gather or a scatter, twice that for an all-reduce.
  int64_t elements_sent() const;
  int64_t weights_held() const;   // matrix elements on the fullest rank
  bool divides_all() const;       // no matrix is replicated
  std::string text() const;       // "out in in"
  std::string cost_text() const;  // "(t−1)/t·b·(d₂ + 2d₃)": sent per rank
};

ChainPlan plan_chain(std::span<const int64_t> widths, int64_t columns, int ranks, std::vector<MatrixCut> cuts);
// All choices, least communication first, then least memory.
std::vector<ChainPlan> all_chains(std::span<const int64_t> widths, int64_t columns, int ranks);

// Runs it on the ranks of `tp_comm` (null: one rank) in fp64, with matrices and x as functions of their indices. Widths
// must be divisible by the ranks. Returns y.
tensor::Tensor run_chain(const tensor::Context& context, TpCommunicator* tp_comm, const ChainPlan& plan);

}  // namespace esp::parallel
