#include "esp/comm/algo/table.h"

#include <iterator>

#include <fmt/format.h>

#include "esp/base/table.h"
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/cost.h"
#include "esp/comm/algo/schedule_builder.h"

namespace esp::comm {
namespace {

template <int num_axes>
std::string shaped(const CollectiveSpec& spec) {
  return grid_problem(spec, num_axes);
}

std::string power_of_two(const CollectiveSpec& spec) {
  if (is_power_of_two(spec.size)) return "";
  return fmt::format("needs a power-of-two number of ranks; got {}", spec.size);
}

std::string divides(const CollectiveSpec& spec) {
  if (spec.count % static_cast<size_t>(spec.size) == 0) return "";
  return fmt::format("needs a count that is a multiple of the {} ranks; got {}", spec.size, spec.count);
}

std::string shaped_and_divides(const CollectiveSpec& spec) {
  std::string wrong = divides(spec);
  return wrong.empty() ? grid_problem(spec, 2) : wrong;
}

// Algorithm ids in tags are indices into this table; all ranks of a job run the same build. The first row of each op
// supports every case.
constexpr AlgorithmRow kAlgorithms[] = {
    {"ring", Op::all_reduce, "reduce-scatter and all-gather around a ring; for large buffers and few ranks",
     all_reduce_ring, nullptr, cost::ring_all_reduce},
    {"ring_shift0", Op::all_reduce, "the textbook ring: rank r ends the reduce-scatter with the sum of chunk r+1",
     all_reduce_ring_shift0, nullptr, cost::ring_all_reduce},
    {"ring_bidirectional", Op::all_reduce,
     "two opposite rings, one per half of the buffer; uses both directions of each link", all_reduce_ring_bidirectional,
     nullptr, cost::ring_bidirectional},
    {"naive", Op::all_reduce, "rank 0 receives all buffers, sums them and sends the sum back; a reference",
     all_reduce_naive, nullptr, cost::naive_all_reduce},
    {"direct", Op::all_reduce, "sums in rank order for any chunking", all_reduce_direct, nullptr,
     cost::ring_all_reduce},
    {"recursive_doubling", Op::all_reduce, "butterfly exchange of the whole buffer; for small buffers",
     all_reduce_recursive_doubling, nullptr, cost::recursive_doubling},
    {"halving_doubling", Op::all_reduce, "recursive halving and doubling; for medium buffers and power-of-two sizes",
     all_reduce_halving_doubling, nullptr, cost::halving_doubling},
    {"tree", Op::all_reduce, "binomial-tree reduce and broadcast; for tiny buffers", all_reduce_tree, nullptr,
     cost::tree_all_reduce},
    {"double_tree", Op::all_reduce, "two pipelined binary trees; for many ranks", all_reduce_double_tree, nullptr,
     cost::double_tree},
    {"hierarchical", Op::all_reduce,
     "reduction to one leader per node, ring among leaders; shape: ranks per node x nodes", all_reduce_hierarchical,
     shaped<2>, cost::hierarchical_all_reduce},
    {"torus2d", Op::all_reduce, "reduce-scatter and all-gather along two axes", all_reduce_torus2d, shaped<2>,
     cost::torus2d},
    {"mesh2d", Op::all_reduce, "a full all-reduce along rows, then along columns", all_reduce_mesh2d, shaped<2>,
     cost::mesh2d},
    {"torus3d", Op::all_reduce, "reduce-scatter and all-gather along three axes", all_reduce_torus3d, shaped<3>,
     cost::torus3d},
    {"torus", Op::all_reduce, "reduce-scatter and all-gather along every axis of the shape", all_reduce_torus,
     shaped<0>, cost::torus},

    {"tree", Op::broadcast, "binomial tree", broadcast_tree, nullptr, cost::tree},
    {"ring_pipelined", Op::broadcast, "segments pipelined along a chain of ranks; for large buffers",
     broadcast_ring_pipelined, nullptr, cost::pipelined},
    {"scatter_allgather", Op::broadcast, "binomial-tree scatter and ring all-gather; for large buffers and many ranks",
     broadcast_scatter_allgather, nullptr, cost::scatter_allgather},
    {"naive", Op::broadcast, "the root sends to one rank after another; a reference", broadcast_naive, nullptr,
     cost::naive},

    {"tree", Op::reduce, "binomial tree", reduce_tree, nullptr, cost::tree},
    {"ring_pipelined", Op::reduce, "segments pipelined along a chain of ranks to the root; for large buffers",
     reduce_ring_pipelined, nullptr, cost::pipelined},
    {"naive", Op::reduce, "all ranks send to the root, which sums in rank order", reduce_naive, nullptr, cost::naive},

    {"ring", Op::reduce_scatter, "partial sums travel around a ring", reduce_scatter_ring, nullptr,
     cost::linear_chunks},
    {"direct", Op::reduce_scatter, "sums in rank order for any chunking", reduce_scatter_direct, nullptr,
     cost::linear_chunks},
    {"halving_doubling", Op::reduce_scatter, "recursive halving; for power-of-two sizes",
     reduce_scatter_halving_doubling, nullptr, cost::halving},

    {"ring", Op::all_gather, "chunks travel around a ring", all_gather_ring, nullptr, cost::linear_chunks},
    {"bruck", Op::all_gather, "log N messages for any number of ranks; for small buffers", all_gather_bruck, nullptr,
     cost::log_chunks},
    {"recursive_doubling", Op::all_gather, "log N messages without a final rotation; for power-of-two sizes",
     all_gather_recursive_doubling, power_of_two, cost::log_chunks},
    {"pairwise", Op::all_gather, "every rank sends its chunk directly to every other rank", all_gather_pairwise,
     nullptr, cost::linear_chunks},

    {"pairwise", Op::all_to_all, "each block goes directly to its rank", all_to_all_pairwise, divides,
     cost::linear_chunks},
    {"bruck", Op::all_to_all, "log N messages that forward blocks; for small blocks", all_to_all_bruck, divides,
     cost::bruck_all_to_all},
    {"hierarchical", Op::all_to_all, "exchange within the node, then between nodes; shape: ranks per node x nodes",
     all_to_all_hierarchical, shaped_and_divides, cost::hierarchical_all_to_all},

    {"pairwise", Op::all_to_all_v, "each block goes directly to its rank", all_to_all_v_pairwise, nullptr,
     cost::all_to_all_v},

    {"tree", Op::gather, "binomial tree", gather_tree, nullptr, cost::log_chunks},
    {"direct", Op::gather, "all ranks send to the root", gather_direct, nullptr, cost::linear_chunks},

    {"tree", Op::scatter, "binomial tree", scatter_tree, nullptr, cost::log_chunks},
    {"direct", Op::scatter, "the root sends to all ranks", scatter_direct, nullptr, cost::linear_chunks},

    {"dissemination", Op::barrier, "log N rounds of signals", barrier_dissemination, nullptr, cost::barrier},
};

}  // namespace

std::span<const AlgorithmRow> algorithms() {
  return kAlgorithms;
}

std::vector<const AlgorithmRow*> algorithms_for(Op op) {
  std::vector<const AlgorithmRow*> rows;
  for (const AlgorithmRow& row : kAlgorithms)
    if (row.op == op) rows.push_back(&row);
  return rows;
}

const AlgorithmRow& find_algorithm(Op op, std::string_view name) {
  std::vector<std::string_view> known;
  for (const AlgorithmRow* row : algorithms_for(op)) {
    if (row->name == name) return *row;
    known.push_back(row->name);
  }
  unknown_name(fmt::format("{} algorithm", name_of(op)), name, known);
}

int algorithm_id(const AlgorithmRow& row) {
  return static_cast<int>(&row - kAlgorithms);
}

std::string_view algorithm_name(int id) {
  if (id == kFusedAlgorithm) return "fused";
  if (id == kFileAlgorithm) return "from a schedule file";
  if (id < 0) return "auto";
  return id < static_cast<int>(std::size(kAlgorithms)) ? kAlgorithms[id].name : "unknown";
}

}  // namespace esp::comm
