// Bytes that the planner says a rank sends, by the very schedules its communicators execute, against what the transport
// counted, exactly: data goes round rings here, numbers of a step (counts, norms, words) travel apart and are left out.
#include <gtest/gtest.h>

#include <mutex>

#include "esp/net/inproc/threads.h"
#include "esp/plan/own_memory.h"
#include "tests/parity/plan_layouts.h"

namespace esp::parity {
namespace {

constexpr int kSteps = 3;

std::vector<uint64_t> executed_bytes(const PlannedLayout& layout) {
  std::vector<uint64_t> sent(static_cast<size_t>(layout.ranks));
  net::run_threads(layout.ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = std::chrono::seconds(60);
    CallLog log;
    Listener listener(comm::make_communicator(world, world.everyone(), options), "world", log, {true});
    train::RunConfig config = config_of(layout.overrides);
    config.check();
    train::Engine engine(config, Log(), {&listener, layout.ranks});
    const Traffic before = listener.traffic();
    for (int step = 0; step < kSteps; ++step) engine.step();
    sent[static_cast<size_t>(world.rank)] = listener.traffic().since(before).data_bytes();
  });
  return sent;
}

uint64_t planned_bytes(const PlannedLayout& layout, const plan::OwnPlace& place) {
  const plan::OwnMemoryOptions options{layout.bucket_mb, layout.first_bucket_mb, layout.prefetch, false};
  const auto step = [&](bool first) {
    double sum = 0;
    for (const plan::ghost::Call& call : plan::own_calls(layout.shape, layout.policy, place, options, first))
      if (call.op == comm::Op::send || static_cast<size_t>(call.count) > kScalars)
        sum += plan::bytes_sent(call, layout.policy, place, "ring");
    return sum;
  };
  return static_cast<uint64_t>(step(true) + (kSteps - 1) * step(false));
}

TEST(PlannedBytes, AreThoseTheTransportCounted) {
  int checked = 0, seen_so_far = 0;
  for (const PlannedLayout& layout : planned_layouts()) {
    const plan::Policy& p = layout.policy;
    if (layout.ranks == 1) continue;
    if (!long_tests() && ++seen_so_far % 2 == 0) continue;  // every other one; all with ESPALIER_TEST_LONG
    // An all-to-all's algorithm is chosen by measured links; ordered norms of a tied pair send blocks of their own.
    if (p.context == "ulysses" || (p.pp > 1 && layout.shape.tied && p.zero > 0)) continue;
    const parallel::MeshShape mesh{p.tp, p.cp, p.dp, p.pp, p.ep};
    const std::vector<uint64_t> seen = executed_bytes(layout);
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const parallel::Coordinates at = mesh.at(rank);
      EXPECT_EQ(planned_bytes(layout, {at.pp, mesh.replica_of(at), at.tp}), seen[static_cast<size_t>(rank)])
          << layout.name << ", rank " << rank;
    }
    ++checked;
  }
  EXPECT_GE(checked, long_tests() ? 40 : 20);
}

}  // namespace
}  // namespace esp::parity
