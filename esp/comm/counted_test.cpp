// Every row of the table run with data over a real transport, 1 to 17 ranks and 27: what the transport counted on every
// rank is what the closed formula says, to the byte and the message, and the results are those of the replay, bit for
// bit.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "esp/base/rng.h"
#include "esp/comm/algo/closed_forms.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/arguments.h"
#include "esp/comm/replay.h"
#include "esp/comm/scheduled.h"
#include "esp/comm/validate.h"
#include "esp/net/inproc/threads.h"

namespace esp::comm {
namespace {

struct Counted {
  const AlgorithmRow* row;
  std::vector<Problem> problems;  // by rank
  std::vector<Bytes> inputs, outputs;
  std::vector<closed::Sent> sent;
  std::vector<std::vector<size_t>> lists;  // what the problems of an irregular exchange lend
  std::string name() const {
    const Problem& p = problems[0];
    return fmt::format("{} {} size {} count {} root {}", name_of(row->op), row->name, p.size, p.count, p.root);
  }
};

Bytes random_floats(size_t count, uint64_t seed) {
  Bytes bytes(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    auto value = static_cast<float>(random_unit(seed, 5, i));
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
  return bytes;
}

// Counts per pair, a third of them nothing, laid out one after the other.
void fill_irregular(Counted& c) {
  size_t n = c.problems.size();
  c.lists.assign(4 * n, std::vector<size_t>(n));
  for (size_t r = 0; r < n; ++r) {
    auto *send = &c.lists[4 * r], *send_at = send + 1, *recv = send + 2, *recv_at = send + 3;
    for (size_t peer = 0; peer < n; ++peer) {
      (*send)[peer] = random_bits(7, 1, r * n + peer) % 3 * (r + 5);
      (*recv)[peer] = random_bits(7, 1, peer * n + r) % 3 * (peer + 5);
    }
    std::exclusive_scan(send->begin(), send->end(), send_at->begin(), size_t{0});
    std::exclusive_scan(recv->begin(), recv->end(), recv_at->begin(), size_t{0});
    Problem& problem = c.problems[r];
    problem.send_counts = *send;
    problem.send_offsets = *send_at;
    problem.recv_counts = *recv;
    problem.recv_offsets = *recv_at;
  }
}

std::vector<closed::Sent> formula_for(const AlgorithmRow& row, const std::vector<Problem>& problems) {
  std::vector<closed::Sent> sent(problems.size());
  if (row.op == Op::all_to_all_v) {
    for (size_t s = 0; s < problems.size(); ++s)
      for (size_t d = 0; d < problems.size(); ++d)
        if (d != s) sent[s] = sent[s] + closed::one(static_cast<closed::Count>(problems[s].send_counts[d]));
    return sent;
  }
  const closed::Formula* formula = closed::formula_of(row);
  if (!formula) throw std::logic_error(fmt::format("{} {} has no formula", name_of(row.op), row.name));
  const Problem& p = problems[0];
  closed::Case c{p.size, 0, p.root, static_cast<closed::Count>(p.count), p.shape.dims, 1};
  if (formula->num_axes >= 0 && c.dims.empty()) c.dims = closed::even_grid(p.size, formula->num_axes);
  for (; c.r < c.size; ++c.r) sent[static_cast<size_t>(c.r)] = formula->sent(c);
  return sent;
}

Counted counted(const AlgorithmRow& row, const Problem& problem) {
  Counted c;
  c.row = &row;
  c.problems = for_every_rank(problem);
  if (row.op == Op::all_to_all_v) fill_irregular(c);
  for (const Problem& p : c.problems)
    c.inputs.push_back(random_floats(sizes_of(p).input, static_cast<uint64_t>(p.rank) + 3));
  c.outputs = replay(c.problems, build_all(row, c.problems), c.inputs, DType::f32, ReduceOp::sum);
  c.sent = formula_for(row, c.problems);
  return c;
}

void run_counted(Scheduled& comm, const Counted& c) {
  auto r = static_cast<size_t>(comm.rank());
  const Problem& problem = c.problems[r];
  Bytes in = c.inputs[r], out(c.outputs[r].size());
  Call call;
  call.op = problem.op;
  call.in = in.data();
  call.out = out.data();
  call.count = problem.count;
  call.root = problem.root;
  call.algorithm = c.row->name;
  call.send_counts = problem.send_counts;
  call.send_offsets = problem.send_offsets;
  call.recv_counts = problem.recv_counts;
  call.recv_offsets = problem.recv_offsets;
  net::Traffic before = comm.transport() ? comm.transport()->total() : net::Traffic{};
  comm.run(call);
  net::Traffic after = comm.transport() ? comm.transport()->total() : net::Traffic{};
  EXPECT_EQ(after.bytes_sent - before.bytes_sent, static_cast<uint64_t>(c.sent[r].elements) * sizeof(float))
      << c.name() << " rank " << r;
  EXPECT_EQ(after.messages_sent - before.messages_sent, static_cast<uint64_t>(c.sent[r].messages))
      << c.name() << " rank " << r;
  EXPECT_EQ(out, c.outputs[r]) << c.name() << " rank " << r;
}

// All rows at one size, in one group.
void expect_counted(int size, const std::vector<int>& shape) {
  std::vector<Counted> cases;
  auto n = static_cast<size_t>(size);
  for (const AlgorithmRow& row : algorithms()) {
    bool rooted = row.op == Op::broadcast || row.op == Op::reduce || row.op == Op::gather || row.op == Op::scatter;
    std::vector<size_t> counts = {1, n + 1, 20 * n * n + n / 2};
    if (row.op == Op::all_to_all) counts = {n, 37 * n};
    if (row.op == Op::barrier || row.op == Op::all_to_all_v) counts = {0};
    for (size_t count : counts) {
      Problem problem;
      problem.op = row.op;
      problem.size = size;
      problem.count = count;
      problem.root = rooted ? static_cast<int>(random_bits(2, count, n) % n) : 0;
      problem.shape.dims = shape;
      // A grid of fewer axes than an algorithm has is split further; the formula is for the axes as given.
      const closed::Formula* formula = closed::formula_of(row);
      if (formula && formula->num_axes > static_cast<int>(shape.size()) && !shape.empty()) continue;
      if (!row.applies || row.applies(problem).empty()) cases.push_back(counted(row, problem));
    }
  }
  CommOptions options;
  options.transport = "inproc";
  options.timeout = std::chrono::seconds(60);
  options.slice_bytes = 0;  // a message of the schedule is a message of the transport
  options.shape = shape;
  net::run_threads(size, [&](net::World& world) {
    Scheduled comm(world, world.everyone(), options);
    for (const Counted& c : cases) run_counted(comm, c);
  });
}

TEST(Counted, BytesAndMessagesOfEveryRowAreThoseOfItsFormula) {
  for (int size = 1; size <= 17; ++size) expect_counted(size, {});
}

TEST(Counted, AlsoOnGridsOfTwentySeven) {
  expect_counted(27, {3, 3, 3});
  expect_counted(27, {9, 3});
}

}  // namespace
}  // namespace esp::comm
