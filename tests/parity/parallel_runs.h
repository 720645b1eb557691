// One training run under any layout, by ranks that are threads of this process, and what came out of it: the loss and
// norm of every step, and every parameter of the model put together from what the ranks hold.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/parity/sync_runs.h"

namespace esp::parity {

struct Gathered {
  tensor::Shape shape;
  DType dtype = DType::f32;
  Image bytes;
  std::vector<double> values() const;
};

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::string> notes;  // rank 0's
  double evaluated = 0;            // on held-out data, after the last step; NaN: there is none
  std::map<std::string, Gathered> parameters;
};

struct LayoutRun {
  int ranks = 1, steps = 10;
  Overrides overrides;
  std::string init;    // begins with this checkpoint's or Hugging Face folder's parameters
  std::string resume;  // begins with this checkpoint
  std::string save;    // and saves into this folder when it ends
  std::function<void(int rank, train::Engine&)> prepare, finish;  // before the first step, after the last
};

// Every rank must say the same of a step, every element be written once, and every copy of it be equal to the bit, or
// this fails the test.
Trained train_layout(const LayoutRun& run);

double loss_error(const Trained& a, const Trained& b);  // most of any step, absolute
// ‖a − b‖ / ‖b‖ of the parameter that differs most; `worst`: its name.
double parameter_error(const Trained& a, const Trained& b, std::string* worst = nullptr);
void expect_same_bits(const Trained& a, const Trained& b, const std::string& what);

// A model whose sizes divide by little: five blocks, 251 tokens, a feed-forward of 37. `arch`: gpt, llama or bert.
Overrides small_model(const std::string& arch, const Overrides& more = {});

}  // namespace esp::parity
