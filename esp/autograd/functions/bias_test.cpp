#include "esp/autograd/functions/bias.h"

#include <gtest/gtest.h>

#include "esp/autograd/functions/pointwise.h"
#include "esp/autograd/testing.h"

namespace esp::autograd {
namespace {

TEST(Bias, GradientsMatchFiniteDifferences) {
  TapeFixture rig;
  Weight b;
  rig.fill(b, {5}, 3);
  // add_bias works in place, so it gets a temporary copy: the finite differences need unchanged inputs.
  const auto f = [&](Tape& tape, const std::vector<Variable>& x) {
    return std::vector<Variable>{add_bias(tape, add(tape, x[0], x[1]), b)};
  };
  EXPECT_LT(max_gradient_error(rig, f, {rig.random({2, 3, 5}, 1), rig.random({2, 3, 5}, 2)}, {&b}), 1e-6);
}

// A node that logs its calls. Each call appends two letters to `notes`: one for the function (p: prepare, i:
// backward_input, w: backward_weight) and the node's name.
class RecordingNode final : public Node {
 public:
  RecordingNode(std::string& notes, char name, int x, int y, Weight* w)
      : notes_(notes), name_(name), x_(x), y_(y), w_(w) {}
  void prepare(Tape&) override { notes_ += {'p', name_}; }
  void backward_input(Tape& tape) override {
    notes_ += {'i', name_};
    tape.accumulate_gradient(x_, tape.take_gradient(y_));
  }
  void backward_weight(Tape&) override { notes_ += {'w', name_}; }
  std::span<Weight* const> weights() const override { return {&w_, w_ ? size_t{1} : size_t{0}}; }

 private:
  std::string& notes_;
  char name_;
  int x_, y_;
  Weight* w_;
};

TEST(Tape, PreparesNextNodeBeforeWeightGradientsOfCurrentNode) {
  TapeFixture rig;
  Weight w;
  rig.fill(w, {1}, 1);
  std::string notes;
  const auto run = [&](bool inputs_first) {
    notes.clear();
    Variable x = rig.tape.leaf(rig.random({2}, 1));
    for (const char name : {'a', 'b', 'c'}) {
      const Variable y = rig.tape.output(x.value());
      rig.tape.record<RecordingNode>(1, notes, name, x.slot(), y.slot(), name == 'b' ? &w : nullptr);
      x = y;
    }
    rig.tape.seed(x, rig.random({2}, 2));
    if (inputs_first) {
      rig.tape.backward_inputs();
      rig.tape.backward_weights();
    } else {
      rig.tape.backward();
    }
    rig.tape.clear();
    return notes;
  };
  EXPECT_EQ(run(false), "icibpawbia");
  EXPECT_EQ(run(true), "icibiawb");
}

}  // namespace
}  // namespace esp::autograd
