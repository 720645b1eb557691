// The parameters of a model: named, counted before they exist, and laid out flat once they do.
//
// Layers ask the list for parameters while they are built; nothing is allocated until `materialize`. Parameters are
// grouped in units (stem, each block, head) whose values lie contiguously, in order and without gaps, in one tensor,
// and whose gradients lie likewise in another: what an optimizer, a bucket or a shard works on. Values begin as a
// function of (seed, name, element index), so they do not depend on who makes them or in what order.
//
// Where several hold one model, each list has its holder's part of every divided parameter (share.h). Names, element
// indices and checkpoints are those of the whole.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "esp/autograd/weight.h"
#include "esp/nn/share.h"
#include "esp/tensor/tensor.h"

namespace esp::nn {

struct Init {
  enum class Kind : uint8_t { zero, one, normal, uniform };
  Kind kind = Kind::zero;
  double scale = 0;  // standard deviation, or half the width

  static Init zeros() { return {Kind::zero, 0}; }
  static Init ones() { return {Kind::one, 0}; }
  static Init normal(double deviation) { return {Kind::normal, deviation}; }
  static Init uniform(double half_width) { return {Kind::uniform, half_width}; }
};

struct Parameter {
  std::string name;                // "blocks.3.attention.qkv.weight"
  tensor::Shape shape;             // of what is held here
  tensor::Shape global_shape;      // of the whole
  int cut_dim = -1;                // the dimension that is divided; -1: none, the whole is here
  std::vector<Interval> sections;  // of the whole, along cut_dim, in the order in which they lie here; else empty
  bool counted = true;  // in sums over all parameters of the model: of copies along the tensor axis, the first
  // Where holders divide the tokens of the stream, what is not divided itself gets the gradient of its own tokens only.
  bool partial = false;
  Init init;
  bool decay = false;  // whether weight decay applies: matrices yes, vectors no
  int index = 0;       // in the list
  int unit = 0;
  int64_t offset = 0;  // elements from the start of its unit
  autograd::Weight weight;

  int64_t count() const { return shape.count(); }
};

class ParameterList {
 public:
  struct Unit {
    std::string name;
    std::vector<Parameter*> parameters;
    int64_t first = 0, count = 0;  // elements: where it begins among those of all units, and how many
    tensor::Tensor values, grads;  // flat [count]; undefined before materialize (grads: without gradients)
  };

  explicit ParameterList(const Shares& shares = {}) : shares_(shares) {}
  const Shares& shares() const { return shares_; }

  void begin_unit(std::string name);  // parameters made from here on belong to it
  // Parameters made from here on, in this unit, read streams that have all their tokens wherever they are held.
  void see_whole_tokens() { whole_tokens_ = true; }
  // `shape` is that of the whole.
  Parameter& add(std::string name, const tensor::Shape& shape, Init init, bool decay, const Cut& cut = {});

  // Memory for everything: the units' values in order in one run, and their gradients likewise.
  void materialize(const tensor::Context& context, DType dtype, bool gradients);
  // The same piecemeal, for whoever keeps only parts: `flat` [count] becomes the unit's (an undefined one: it has
  // none).
  void place_values(Unit& unit, tensor::Tensor flat);
  void place_gradients(Unit& unit, tensor::Tensor flat);
  void initialise(uint64_t seed, const device::Stream& stream);
  void initialise(Unit& unit, uint64_t seed, const device::Stream& stream);
  void zero_gradients(const device::Stream& stream);
  // The same for a step that is about to add to them: only marked (Weight::stale), but for vectors of a processor.
  // Whoever reads `grads` calls `settle_gradients` first, which clears what nobody has added to.
  void forget_gradients(const device::Stream& stream);
  void settle_gradients(const device::Stream& stream);

  int64_t count() const;                   // elements of all
  Parameter& find(std::string_view name);  // UsageError naming the nearest
  Parameter* find_or_null(std::string_view name);
  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  std::vector<Unit>& units() { return units_; }
  const std::vector<Unit>& units() const { return units_; }

 private:
  Shares shares_;
  bool whole_tokens_ = false;
  std::deque<Parameter> parameters_;  // stable addresses: layers and tapes point here
  std::unordered_map<std::string_view, Parameter*> by_name_;
  std::vector<Unit> units_;
};

}  // namespace esp::nn
