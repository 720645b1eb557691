// The validator proves every algorithm of the table: 1 to 17 and 27 ranks, counts that are not divisible, every root,
// whole and sliced messages.
#include <gtest/gtest.h>

#include <numeric>

#include "esp/base/rng.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

bool rooted(Op op) {
  return op == Op::broadcast || op == Op::reduce || op == Op::gather || op == Op::scatter;
}

std::vector<int> all_sizes() {
  std::vector<int> sizes(17);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.push_back(27);
  return sizes;
}

std::string label(const AlgorithmRow& row, const CollectiveSpec& p) {
  return fmt::format("{} {} size {} count {} root {} segments {}", name_of(row.op), row.name, p.size, p.count, p.root,
                     p.segments);
}

void expect_valid(const AlgorithmRow& row, const CollectiveSpec& spec) {
  if (row.applies && !row.applies(spec).empty()) return;
  std::vector<CollectiveSpec> specs = specs_for_all_ranks(spec);
  std::vector<Schedule> schedules = build_all(row, specs);
  EXPECT_EQ(find_fault(specs, schedules), "") << label(row, spec);
  for (Schedule& schedule : schedules) schedule = slice(schedule, 7);
  EXPECT_EQ(find_fault(specs, schedules), "") << "sliced, " << label(row, spec);
}

class AlgorithmValidity : public testing::TestWithParam<size_t> {};

TEST_P(AlgorithmValidity, EveryAlgorithmPassesForAllSizesCountsAndRoots) {
  const AlgorithmRow& row = algorithms()[GetParam()];
  // all_to_all_v needs counts per peer; AllToAllV.PairwisePassesValidatorForIrregularCounts tests it
  if (row.op == Op::all_to_all_v) return;
  for (int size : all_sizes()) {
    auto n = static_cast<size_t>(size);
    std::vector<size_t> counts = {0, 1, n - 1, n, n + 1, 1000, 3 * n * n};
    if (row.op == Op::all_to_all) counts = {0, n, 3 * n, 8 * n};
    if (row.op == Op::barrier) counts = {0};
    for (size_t count : counts)
      for (int root = 0; root < (rooted(row.op) ? size : 1); ++root) {
        CollectiveSpec spec;
        spec.op = row.op;
        spec.size = size;
        spec.count = count;
        spec.root = root;
        expect_valid(row, spec);
        spec.segments = 5;
        if (row.name.ends_with("pipelined") || row.name == "double_tree") expect_valid(row, spec);
      }
  }
}

INSTANTIATE_TEST_SUITE_P(AlgorithmTable, AlgorithmValidity, testing::Range<size_t>(0, algorithms().size()),
                         [](const testing::TestParamInfo<size_t>& which) {
                           const AlgorithmRow& row = algorithms()[which.param];
                           return fmt::format("{}_{}", name_of(row.op), row.name);
                         });

TEST(Algorithms, PassValidatorOnGridsOfEveryShape) {
  const std::vector<std::vector<int>> shapes = {{4, 2},    {2, 4},       {8, 1}, {1, 8},   {5, 3},
                                                {3, 3, 3}, {2, 2, 2, 2}, {4},    {2, 3, 2}};
  for (const AlgorithmRow& row : algorithms()) {
    if (row.op != Op::all_reduce && row.op != Op::all_to_all) continue;
    for (const auto& dims : shapes) {
      CollectiveSpec spec;
      spec.op = row.op;
      spec.size = std::accumulate(dims.begin(), dims.end(), 1, std::multiplies<>());
      spec.shape.dims = dims;
      for (size_t count : {size_t{0}, size_t{7}, static_cast<size_t>(spec.size) * 6}) {
        spec.count = count;
        expect_valid(row, spec);
      }
    }
  }
}

TEST(AllToAllV, PairwisePassesValidatorForIrregularCounts) {
  const AlgorithmRow& row = find_algorithm(Op::all_to_all_v, "pairwise");
  for (int size : all_sizes()) {
    auto n = static_cast<size_t>(size);
    // counts[s][d]: number of elements that rank s sends to rank d; a third of the counts are 0.
    std::vector<std::vector<size_t>> send(n, std::vector<size_t>(n)), recv = send, send_at = send, recv_at = send;
    for (size_t s = 0; s < n; ++s)
      for (size_t d = 0; d < n; ++d) send[s][d] = recv[d][s] = random_bits(7, 1, s * n + d) % 9 / 3 * (s + 1);
    for (size_t r = 0; r < n; ++r) {
      std::exclusive_scan(send[r].begin(), send[r].end(), send_at[r].begin(), size_t{0});
      std::exclusive_scan(recv[r].rbegin(), recv[r].rend(), recv_at[r].rbegin(), size_t{0});
    }
    CollectiveSpec spec;
    spec.op = Op::all_to_all_v;
    spec.size = size;
    std::vector<CollectiveSpec> specs = specs_for_all_ranks(spec);
    for (size_t r = 0; r < n; ++r) {
      specs[r].send_counts = send[r];
      specs[r].send_offsets = send_at[r];
      specs[r].recv_counts = recv[r];
      specs[r].recv_offsets = recv_at[r];
    }
    EXPECT_EQ(find_fault(specs, build_all(row, specs)), "") << size;
  }
}

TEST(AlgorithmTable, ErrorListsKnownNames) {
  EXPECT_EQ(find_algorithm(Op::broadcast, "tree").op, Op::broadcast);
  try {
    find_algorithm(Op::all_gather, "rinng");
    FAIL();
  } catch (const std::exception& error) {
    std::string text = error.what();
    EXPECT_NE(text.find("all_gather"), std::string::npos) << text;
    EXPECT_NE(text.find("did you mean \"ring\""), std::string::npos) << text;
    EXPECT_NE(text.find("bruck"), std::string::npos) << text;
    EXPECT_EQ(text.find("double_tree"), std::string::npos) << text;
  }
  for (const AlgorithmRow& row : algorithms()) EXPECT_EQ(&algorithms()[static_cast<size_t>(algorithm_id(row))], &row);
}

}  // namespace
}  // namespace esp::comm
