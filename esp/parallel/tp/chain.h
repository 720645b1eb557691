// A chain of matrices y = Wₙ···W₁x over t ranks, each cut by its outputs, by its inputs, or on every rank whole: what
// each choice sends, and the same run for real. Different partitions incur different costs.
//
// x [d₀, b] is on every rank and y must be. A matrix cut by outputs reads all of its input and makes a share of its
// output; one cut by inputs reads a share and makes a summand of all; a whole one reads and makes all. Between two
// matrices what was made becomes what is read: a share becomes all by all-gather, a summand becomes all by all-reduce
// and a share by reduce-scatter; all becomes a share by looking at it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "esp/parallel/tp/line.h"

namespace esp::parallel {

enum class MatrixCut : uint8_t { out, in, whole };
std::string_view name_of(MatrixCut cut);

struct ChainMove {
  int after = 0;  // matrix, counted from 1
  comm::Op op = comm::Op::all_gather;
  int64_t elements = 0;  // of the whole tensor
};

struct ChainPlan {
  std::vector<int64_t> widths;  // d₀ … dₙ
  int64_t columns = 1;          // b
  int ranks = 1;
  std::vector<MatrixCut> cuts;
  std::vector<ChainMove> moves;

  // By all ranks together: (t−1)·elements for a gather or a scatter, twice that for an all-reduce.
  int64_t elements_sent() const;
  int64_t weights_held() const;   // elements of matrices on the rank that holds most
  bool divides_all() const;       // no matrix is whole
  std::string text() const;       // "out in in"
  std::string cost_text() const;  // "(t−1)/t·b·(d₂ + 2d₃)": what one rank sends
};

ChainPlan plan_chain(std::span<const int64_t> widths, int64_t columns, int ranks, std::vector<MatrixCut> cuts);
// All choices for each matrix, those that send least first, and among equals those that hold least.
std::vector<ChainPlan> all_chains(std::span<const int64_t> widths, int64_t columns, int ranks);

// Runs it among the ranks of `line` (null: alone) in fp64, with matrices and x a function of their indices. Widths must
// divide by the ranks. Returns y.
tensor::Tensor run_chain(const tensor::Context& context, Line* line, const ChainPlan& plan);

}  // namespace esp::parallel
