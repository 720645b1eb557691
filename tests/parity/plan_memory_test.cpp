// What the planner says our runtime allocates at its fullest moment, against the account of every rank's pool: within
// one part in a hundred, over layouts of every axis.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <mutex>

#include <fmt/format.h>

#include "esp/plan/own_memory.h"
#include "tests/parity/plan_layouts.h"

namespace esp::parity {
namespace {

struct Compared {
  double worst = 0;
  std::string text;
};

std::vector<uint64_t> executed_peaks(const PlannedLayout& layout) {
  std::vector<uint64_t> peaks(static_cast<size_t>(layout.ranks));
  LayoutRun run;
  run.ranks = layout.ranks;
  run.steps = 2;
  run.overrides = layout.overrides;
  run.prepare = [](int, train::Engine& engine) { engine.account().reset_peaks(); };
  run.finish = [&](int rank, train::Engine& engine) {
    peaks[static_cast<size_t>(rank)] = engine.account().use(device::MemoryTier::device).peak;
  };
  train_layout(run);
  return peaks;
}

// Of one message between stages.
int64_t stream_bytes(const PlannedLayout& layout) {
  const plan::Policy& p = layout.policy;
  return p.micro_batch * layout.shape.seq * layout.shape.hidden * (p.precision == "fp32" ? 4 : 2) / p.cp /
         (p.sequence ? p.tp : 1);
}

Compared compare(const PlannedLayout& layout) {
  const std::vector<uint64_t> peaks = executed_peaks(layout);
  const plan::Policy& p = layout.policy;
  const parallel::MeshShape mesh{p.tp, p.cp, p.dp, p.pp, p.ep};
  Compared result;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const parallel::Coordinates at = mesh.at(rank);
    const plan::Memory said = plan::own_memory(layout.shape, p, {at.pp, mesh.replica_of(at), at.tp},
                                               {layout.bucket_mb, layout.first_bucket_mb, layout.prefetch, false});
    const double seen = static_cast<double>(peaks[static_cast<size_t>(rank)]);
    // Messages of a pipeline that are under way lie there as long as the neighbour is slower than they think.
    const double message = p.pp > 1 ? 3.0 * static_cast<double>(stream_bytes(layout)) : 0;
    const double apart = said.allocated() - seen, rest = std::max(0.0, std::abs(apart) - message);
    const double error = std::copysign(rest, apart) / seen;
    if (std::abs(error) > std::abs(result.worst)) result.worst = error;
    result.text += fmt::format(" {:.0f}/{:.0f}", said.allocated(), seen);
  }
  return result;
}

TEST(PlannedMemory, IsTheAllocatorsPeakWithinOnePercent) {
  const std::vector<PlannedLayout> all = planned_layouts();
  ASSERT_GE(all.size(), 60u);
  const char* only = std::getenv("ESPALIER_LAYOUT");  // one of them, by name
  double sum = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const PlannedLayout& layout = all[i];
    if (only ? layout.name != only : !long_tests() && i % 2 == 1) continue;  // all with ESPALIER_TEST_LONG
    const Compared one = compare(layout);
    sum += std::abs(one.worst);
    EXPECT_LE(std::abs(one.worst), 0.01) << layout.name << ": said/seen by rank" << one.text;
  }
  RecordProperty("layouts", static_cast<int>(all.size()));
  RecordProperty("mean_error", fmt::format("{:.5f}", sum / static_cast<double>(all.size())));
}

}  // namespace
}  // namespace esp::parity
