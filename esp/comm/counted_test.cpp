// Runs every algorithm with data over a real transport, on 1 to 17 ranks and on 27. On every rank the transport's
// counters must equal the closed formula exactly in bytes and messages, and the results must equal the replay bit for
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
#include "esp/comm/scheduled_communicator.h"
#include "esp/comm/validate.h"
#include "esp/net/inproc/threads.h"

namespace esp::comm {
namespace {

struct Counted {
  const AlgorithmRow* row;
  std::vector<CollectiveSpec> specs;  // indexed by rank
  std::vector<Bytes> inputs, outputs;
  std::vector<closed::SentCount> sent;
  std::vector<std::vector<size_t>> lists;  // storage for the count and offset spans of all_to_all_v
  std::string name() const {
    const CollectiveSpec& p = specs[0];
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

// Fills the counts of every pair of ranks; about a third are 0. Data is laid out without gaps.
void fill_irregular(Counted& c) {
  size_t n = c.specs.size();
  c.lists.assign(4 * n, std::vector<size_t>(n));
  for (size_t r = 0; r < n; ++r) {
    auto *send = &c.lists[4 * r], *send_at = send + 1, *recv = send + 2, *recv_at = send + 3;
    for (size_t peer = 0; peer < n; ++peer) {
      (*send)[peer] = random_bits(7, 1, r * n + peer) % 3 * (r + 5);
      (*recv)[peer] = random_bits(7, 1, peer * n + r) % 3 * (peer + 5);
    }
    std::exclusive_scan(send->begin(), send->end(), send_at->begin(), size_t{0});
    std::exclusive_scan(recv->begin(), recv->end(), recv_at->begin(), size_t{0});
    CollectiveSpec& spec = c.specs[r];
    spec.send_counts = *send;
    spec.send_offsets = *send_at;
    spec.recv_counts = *recv;
    spec.recv_offsets = *recv_at;
  }
}

std::vector<closed::SentCount> formula_for(const AlgorithmRow& row, const std::vector<CollectiveSpec>& specs) {
  std::vector<closed::SentCount> sent(specs.size());
  if (row.op == Op::all_to_all_v) {
    for (size_t s = 0; s < specs.size(); ++s)
      for (size_t d = 0; d < specs.size(); ++d)
        if (d != s) sent[s] = sent[s] + closed::one(static_cast<closed::Count>(specs[s].send_counts[d]));
    return sent;
  }
  const closed::Formula* formula = closed::formula_of(row);
  if (!formula) throw std::logic_error(fmt::format("{} {} has no formula", name_of(row.op), row.name));
  const CollectiveSpec& p = specs[0];
  closed::Case c{p.size, 0, p.root, static_cast<closed::Count>(p.count), p.shape.dims, 1};
  if (formula->num_axes >= 0 && c.dims.empty()) c.dims = closed::even_grid(p.size, formula->num_axes);
  for (; c.r < c.size; ++c.r) sent[static_cast<size_t>(c.r)] = formula->sent(c);
  return sent;
}

Counted counted(const AlgorithmRow& row, const CollectiveSpec& spec) {
  Counted c;
  c.row = &row;
  c.specs = specs_for_all_ranks(spec);
  if (row.op == Op::all_to_all_v) fill_irregular(c);
  for (const CollectiveSpec& p : c.specs)
    c.inputs.push_back(random_floats(sizes_of(p).input, static_cast<uint64_t>(p.rank) + 3));
  c.outputs = replay(c.specs, build_all(row, c.specs), c.inputs, DType::f32, ReduceOp::sum);
  c.sent = formula_for(row, c.specs);
  return c;
}

void run_counted(ScheduledCommunicator& comm, const Counted& c) {
  auto r = static_cast<size_t>(comm.rank());
  const CollectiveSpec& spec = c.specs[r];
  Bytes in = c.inputs[r], out(c.outputs[r].size());
  Call call;
  call.op = spec.op;
  call.in = in.data();
  call.out = out.data();
  call.count = spec.count;
  call.root = spec.root;
  call.algorithm = c.row->name;
  call.send_counts = spec.send_counts;
  call.send_offsets = spec.send_offsets;
  call.recv_counts = spec.recv_counts;
  call.recv_offsets = spec.recv_offsets;
  net::Traffic before = comm.transport() ? comm.transport()->total() : net::Traffic{};
  comm.run(call);
  net::Traffic after = comm.transport() ? comm.transport()->total() : net::Traffic{};
  EXPECT_EQ(after.bytes_sent - before.bytes_sent, static_cast<uint64_t>(c.sent[r].elements) * sizeof(float))
      << c.name() << " rank " << r;
  EXPECT_EQ(after.messages_sent - before.messages_sent, static_cast<uint64_t>(c.sent[r].messages))
      << c.name() << " rank " << r;
  EXPECT_EQ(out, c.outputs[r]) << c.name() << " rank " << r;
}

// Runs every algorithm with one group size.
void expect_counted(int size, const std::vector<int>& shape) {
  std::vector<Counted> cases;
  auto n = static_cast<size_t>(size);
  for (const AlgorithmRow& row : algorithms()) {
    bool rooted = row.op == Op::broadcast || row.op == Op::reduce || row.op == Op::gather || row.op == Op::scatter;
    std::vector<size_t> counts = {1, n + 1, 20 * n * n + n / 2};
    if (row.op == Op::all_to_all) counts = {n, 37 * n};
    if (row.op == Op::barrier || row.op == Op::all_to_all_v) counts = {0};
    for (size_t count : counts) {
      CollectiveSpec spec;
      spec.op = row.op;
      spec.size = size;
      spec.count = count;
      spec.root = rooted ? static_cast<int>(random_bits(2, count, n) % n) : 0;
      spec.shape.dims = shape;
      // Skips algorithms that need more axes than `shape` has: they split the grid further, but the formula assumes the
      // given grid.
      const closed::Formula* formula = closed::formula_of(row);
      if (formula && formula->num_axes > static_cast<int>(shape.size()) && !shape.empty()) continue;
      if (!row.applies || row.applies(spec).empty()) cases.push_back(counted(row, spec));
    }
  }
  CommOptions options;
  options.transport = "inproc";
  options.timeout = std::chrono::seconds(60);
  options.slice_bytes = 0;  // one message of the schedule is one message of the transport
  options.shape = shape;
  net::run_threads(size, [&](net::World& world) {
    ScheduledCommunicator comm(world, world.world_group(), options);
    for (const Counted& c : cases) run_counted(comm, c);
  });
}

TEST(TrafficCounters, MatchFormulaForEveryAlgorithm) {
  for (int size = 1; size <= 17; ++size) expect_counted(size, {});
}

TEST(TrafficCounters, MatchFormulaOnGridsOf27Ranks) {
  expect_counted(27, {3, 3, 3});
  expect_counted(27, {9, 3});
}

}  // namespace
}  // namespace esp::comm
