// One training run by N ranks, as threads of this process, and what a test wants to know of it; and the same run by one
// ordered process, written apart from the engine: the gradients of the N shares one after another, summed in rank
// order.
//
// Models are tiny and of sizes that divide by nothing. Values are compared as one image: the bytes of all units in
// order.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "esp/train/engine.h"
#include "tests/parity/sync_calls.h"

namespace esp::parity {

using Overrides = std::vector<std::string>;
using Image = std::vector<std::byte>;

// The run file's words every test begins with; later ones override. Text of ASCII words lies in a folder of the
// process.
Overrides tiny(const Overrides& more = {});
std::string pairs_file();  // jsonl of sources and targets of different lengths
train::RunConfig config_of(const Overrides& overrides);

struct Plan {
  int ranks = 1, steps = 3;
  Overrides overrides;
  std::string transport = "inproc";
  bool apart = false;  // scalars and data travel by different algorithms, so that their bytes can be told apart
  std::function<void(int rank, train::Engine&)> prepare;          // once the engine is made
  std::function<void(int rank, int step, train::Engine&)> after;  // each step
  std::function<void(const std::string&)> noted;                  // by a rank's strategy; any rank's thread
  std::function<void(int rank, CallLog&)> listen;                 // before the first call
};

struct Step {
  double loss = 0, grad_norm = 0, scale = 1;
  bool skipped = false;
  Image values;
};

struct RankSeen {
  device::MemoryUse uses[device::kNumCategories];  // peaks are of the steps after the first two
  std::vector<obs::SpanRecord> spans;
  Json trace;  // with the collectives, as a run writes it
  CallLog calls;
  Traffic traffic;  // of the steps, without what making the engine sent
};

struct Seen {
  std::vector<Step> steps;
  std::vector<RankSeen> ranks;
  std::vector<int64_t> units;  // elements of each
  double evaluated = 0;
  int64_t count() const;
};

// Every rank must say the same of a step and hold the same values, to the bit, or this fails the test.
Seen train_ranks(const Plan& plan);
Seen train_ordered(const Plan& plan);

void expect_same_bits(const Seen& a, const Seen& b, const std::string& what);
// Of two images, ‖a − b‖ / ‖b‖ over all elements.
double distance(const Image& a, const Image& b, DType dtype);

bool long_tests();

}  // namespace esp::parity
