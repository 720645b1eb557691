#include "esp/train/step_request.h"

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

double pack(const StepRequest& request) {
  uint64_t bits = milliseconds(request.checkpoint_cost_s);
  bits = bits << kCostBits | milliseconds(request.snapshot_cost_s);
  bits = bits << kSaveBits | static_cast<uint64_t>(request.save);
  return static_cast<double>(bits << 1 | (request.stop ? 1 : 0));
}

StepRequest unpack(double word) {
  const auto bits = static_cast<uint64_t>(word);
  constexpr uint64_t kSaveMask = (1 << kSaveBits) - 1;
  return {(bits & 1) != 0, static_cast<PeriodicSave>(bits >> 1 & kSaveMask), seconds(bits >> (1 + kSaveBits)),
          seconds(bits >> (1 + kSaveBits + kCostBits))};
}

}  // namespace esp::train
