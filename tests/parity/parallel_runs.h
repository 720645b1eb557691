// Training runs in any layout, with the ranks as threads of this process. They report the loss and gradient norm of
// every step, and every parameter, assembled from all ranks.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/parity/sync_runs.h"

namespace esp::parity {

struct GatheredParameter {
  tensor::Shape shape;
  DType dtype = DType::f32;
  ByteImage bytes;
  std::vector<double> values() const;
};

struct LayoutResult {
  std::vector<double> losses, norms;
  std::vector<std::string> notes;  // notes that rank 0 printed
  double evaluated = 0;            // loss on held-out data after the last step; NaN without held-out data
  std::map<std::string, GatheredParameter> parameters;
};

struct LayoutRun {
  int ranks = 1, steps = 10;
  Overrides overrides;
  std::string init;    // if set: checkpoint or Hugging Face folder with the initial weights
  std::string resume;  // if set: checkpoint to resume from
  std::string save;    // if set: folder for a checkpoint after the last step
  // called on every rank before the first step (prepare) and after the last (finish)
  std::function<void(int rank, train::Engine&)> prepare, finish;
};

// Runs the training. Fails the test unless all ranks report the same steps, every element is saved exactly once, and
// all replicas of an element are bit-identical.
LayoutResult train_layout(const LayoutRun& run);

// largest absolute difference between the losses of a step
double loss_error(const LayoutResult& a, const LayoutResult& b);
// The largest ‖a − b‖ / ‖b‖ of any parameter. If `worst` is not null, it receives that parameter's name.
double parameter_error(const LayoutResult& a, const LayoutResult& b, std::string* worst = nullptr);
void expect_same_bits(const LayoutResult& a, const LayoutResult& b, const std::string& what);

// Overrides for a model with sizes that are divisible by few numbers: 5 blocks, 251 tokens, feed-forward size 37.
// `arch`: gpt, llama or bert.
Overrides small_model(const std::string& arch, const Overrides& more = {});

}  // namespace esp::parity
