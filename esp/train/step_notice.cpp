#include "esp/train/step_notice.h"

#include <algorithm>
#include <cmath>

namespace esp::train {
namespace {

constexpr int kCostBits = 24, kSaveBits = 2;
constexpr uint64_t kMaxCost_ms = (uint64_t{1} << kCostBits) - 1;

uint64_t milliseconds(double seconds) {
  return static_cast<uint64_t>(std::clamp(std::round(seconds * 1e3), 0.0, static_cast<double>(kMaxCost_ms)));
}

double seconds(uint64_t bits) {
  return static_cast<double>(bits & kMaxCost_ms) * 1e-3;
}

}  // namespace

double packed(const StepNotice& notice) {
  uint64_t bits = milliseconds(notice.checkpoint_cost_s);
  bits = bits << kCostBits | milliseconds(notice.snapshot_cost_s);
  bits = bits << kSaveBits | static_cast<uint64_t>(notice.save);
  return static_cast<double>(bits << 1 | (notice.stop ? 1 : 0));
}

StepNotice unpacked(double word) {
  const auto bits = static_cast<uint64_t>(word);
  constexpr uint64_t kSaveMask = (1 << kSaveBits) - 1;
  return {(bits & 1) != 0, static_cast<PeriodicSave>(bits >> 1 & kSaveMask), seconds(bits >> (1 + kSaveBits)),
          seconds(bits >> (1 + kSaveBits + kCostBits))};
}

}  // namespace esp::train
