// Training runs with N ranks as threads of this process, and the results that tests compare. train_reference runs the
// same training in one process without the engine: it computes the gradients of the N batches one after another and
// sums them in rank order.
//
// Models are tiny, with sizes that no rank count divides. Weights are compared as one byte image: the bytes of all
// units in order.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "esp/train/engine.h"
#include "tests/parity/sync_recording_communicator.h"

namespace esp::parity {

using Overrides = std::vector<std::string>;
using ByteImage = std::vector<std::byte>;

// Overrides for the run file of every test; those in `more` take precedence. The text data (ASCII words) is in a
// temporary folder of the process.
Overrides tiny_model(const Overrides& more = {});
std::string pairs_file();  // path of a JSON lines file; its source and target texts have different lengths
train::RunConfig parse_config(const Overrides& overrides);

struct RunSpec {
  int ranks = 1, steps = 3;
  Overrides overrides;
  std::string transport = "inproc";
  // Scalars and data use different algorithms, so that their bytes can be counted separately.
  bool separate_scalars = false;
  std::function<void(int rank, train::Engine&)> prepare;  // called on every rank after its engine is constructed
  std::function<void(int rank, int step, train::Engine&)> after_step;  // called on every rank after each step
  // called on the thread of each rank with each note of its strategy
  std::function<void(const std::string&)> on_note;
  std::function<void(int rank, CallLog&)> prepare_log;  // called on every rank before its first communicator call
};

struct StepRecord {
  double loss = 0, grad_norm = 0, scale = 1;
  bool skipped = false;
  ByteImage values;
};

struct RankResult {
  device::MemoryUse uses[device::kNumCategories];  // index: category; the peaks exclude the first two steps
  std::vector<obs::SpanRecord> spans;
  Json trace;  // the rank's trace, including its collectives
  CallLog calls;
  Traffic traffic;  // traffic of the steps; that of the engine's construction is excluded
};

struct RunResult {
  std::vector<StepRecord> steps;
  std::vector<RankResult> ranks;
  std::vector<int64_t> units;  // number of elements of each unit
  double evaluated = 0;
  int64_t count() const;
};

// Runs the ranks. Fails the test unless all ranks report the same steps and hold bit-identical weights.
RunResult train_ranks(const RunSpec& spec);
RunResult train_reference(const RunSpec& spec);

void expect_same_bits(const RunResult& a, const RunResult& b, const std::string& what);
// ‖a − b‖ / ‖b‖ over all elements of two images.
double relative_distance(const ByteImage& a, const ByteImage& b, DType dtype);

bool long_tests();

}  // namespace esp::parity
