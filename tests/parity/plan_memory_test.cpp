// For layouts of every axis: the peak memory that the planner predicts must be within 1 % of the peak of every rank's
// memory pool.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <mutex>

#include <fmt/format.h>

#include "esp/plan/espalier_memory.h"
#include "tests/parity/plan_layouts.h"

namespace esp::parity {
namespace {

struct MemoryComparison {
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

// The bytes of one message between pipeline stages.
int64_t stage_message_bytes(const PlannedLayout& layout) {
  const plan::Policy& p = layout.policy;
  return p.micro_batch * layout.shape.seq * layout.shape.hidden * (p.precision == "fp32" ? 4 : 2) / p.cp /
         (p.sequence ? p.tp : 1);
}

MemoryComparison compare(const PlannedLayout& layout) {
  const std::vector<uint64_t> peaks = executed_peaks(layout);
  const plan::Policy& p = layout.policy;
  const parallel::MeshShape mesh{p.tp, p.cp, p.dp, p.pp, p.ep};
  MemoryComparison result;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const parallel::Coordinates at = mesh.at(rank);
    const plan::Memory planned =
        plan::espalier_memory(layout.shape, p, {at.pp, mesh.replica_of(at), at.tp},
                              {layout.bucket_mb, layout.first_bucket_mb, layout.prefetch, false});
    const double executed = static_cast<double>(peaks[static_cast<size_t>(rank)]);
    // A pipeline message in flight stays allocated until the neighbour has received it, so the peak depends on timing.
    const double message = p.pp > 1 ? 3.0 * static_cast<double>(stage_message_bytes(layout)) : 0;
    const double difference = planned.allocated() - executed, rest = std::max(0.0, std::abs(difference) - message);
    const double error = std::copysign(rest, difference) / executed;
    if (std::abs(error) > std::abs(result.worst)) result.worst = error;
    result.text += fmt::format(" {:.0f}/{:.0f}", planned.allocated(), executed);
  }
  return result;
}

TEST(PlannedMemory, PredictedPeakIsWithinOnePercentOfAllocatorPeak) {
  const std::vector<PlannedLayout> all = planned_layouts();
  ASSERT_GE(all.size(), 60u);
  const char* only = std::getenv("ESPALIER_LAYOUT");  // if set: name of the only layout to test
  double sum = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const PlannedLayout& layout = all[i];
    // by default every second layout is tested; with ESPALIER_TEST_LONG all
    if (only ? layout.name != only : !long_tests() && i % 2 == 1) continue;
    const MemoryComparison one = compare(layout);
    sum += std::abs(one.worst);
    EXPECT_LE(std::abs(one.worst), 0.01) << layout.name << ": planned/executed by rank" << one.text;
  }
  RecordProperty("layouts", static_cast<int>(all.size()));
  RecordProperty("mean_error", fmt::format("{:.5f}", sum / static_cast<double>(all.size())));
}

}  // namespace
}  // namespace esp::parity
