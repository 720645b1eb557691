// The parameters of a model: named, counted before allocation, and stored flat once allocated.
//
// Layers add parameters while they are built; `materialize` allocates memory. Parameters are grouped in units (stem,
// each block, head). The values of a unit are contiguous in one tensor and its gradients in another. Optimizers and
// sync strategies work on units. Initial values are a function of (seed, name, element index), independent of the rank
// and of the order of creation.
//
// With tensor parallelism each list holds its rank's shard of every sharded parameter (shard.h). Names, element indices
// and checkpoints refer to the whole parameter.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "esp/autograd/weight.h"
#include "esp/nn/shard.h"
#include "esp/tensor/tensor.h"

namespace esp::nn {

struct Init {
  enum class Distribution : uint8_t { zero, one, normal, uniform };
  Distribution kind = Distribution::zero;
  double scale = 0;  // normal: standard deviation; uniform: half the width of the interval

  static Init zeros() { return {Distribution::zero, 0}; }
  static Init ones() { return {Distribution::one, 0}; }
  static Init normal(double deviation) { return {Distribution::normal, deviation}; }
  static Init uniform(double half_width) { return {Distribution::uniform, half_width}; }
};

struct Parameter {
  std::string name;            // for example "blocks.3.attention.qkv.weight"
  tensor::Shape shape;         // shape of the local shard
  tensor::Shape global_shape;  // shape of the whole parameter
  int cut_dim = -1;            // the sharded dimension; -1: not sharded
  // The index ranges along cut_dim that are local, in storage order; empty if not sharded.
  std::vector<IndexRange> sections;
  // True if sums over the model's parameters (counts, norms) include this parameter. Of several replicas of a
  // parameter, only one is included.
  bool counted = true;
  // True if the parameter is replicated under sequence parallelism: its gradient then covers only the local tokens.
  bool partial = false;
  Init init;
  bool decay = false;  // whether weight decay applies: true for matrices, false for vectors
  int index = 0;       // index in the list
  int unit = 0;
  int64_t offset = 0;  // offset in elements from the start of its unit
  autograd::Weight weight;

  int64_t count() const { return shape.count(); }
};

class ParameterList {
 public:
  struct Unit {
    std::string name;
    std::vector<Parameter*> parameters;
    int64_t first = 0, count = 0;  // in elements; first: offset of this unit from the start of the first unit
    // Flat tensors of `count` elements. Both are undefined before `materialize`; `grads` stays undefined if gradients
    // were not requested.
    tensor::Tensor values, grads;
  };

  explicit ParameterList(const ModelShards& shares = {}) : shares_(shares) {}
  const ModelShards& shares() const { return shares_; }

  void begin_unit(std::string name);  // starts a unit; parameters added later belong to it
  // Parameters added later to this unit process all tokens on every rank, also under sequence parallelism.
  void set_full_sequence() { whole_tokens_ = true; }
  // Adds a parameter to the current unit. `shape` is the shape of the whole parameter.
  Parameter& add(std::string name, const tensor::Shape& shape, Init init, bool decay, const ShardSpec& cut = {});

  // Allocates all units: one contiguous range for the values, in unit order, and one for the gradients.
  void materialize(const tensor::Context& context, DType dtype, bool gradients);
  // Sets the storage of one unit, for callers that store only part of the model. `flat` [count] becomes the unit's
  // storage; undefined: the unit has no storage.
  void bind_values(Unit& unit, tensor::Tensor flat);
  void bind_gradients(Unit& unit, tensor::Tensor flat);
  void initialise(uint64_t seed, const device::Stream& stream);
  void initialise(Unit& unit, uint64_t seed, const device::Stream& stream);
  void zero_gradients(const device::Stream& stream);
  // Prepares the gradients for a step that accumulates them: marks them stale instead of zeroing them (Weight::stale),
  // except vectors on a CPU, which it zeroes. Before `grads` is read, `clear_stale_gradients` must be called; it zeroes
  // the gradients that received no contribution.
  void mark_gradients_stale(const device::Stream& stream);
  void clear_stale_gradients(const device::Stream& stream);

  int64_t count() const;                   // number of elements of all parameters
  Parameter& find(std::string_view name);  // throws UsageError naming the most similar parameter
  Parameter* find_or_null(std::string_view name);
  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  std::vector<Unit>& units() { return units_; }
  const std::vector<Unit>& units() const { return units_; }

 private:
  ModelShards shares_;
  bool whole_tokens_ = false;
  std::deque<Parameter> parameters_;  // a deque, because layers and tapes hold pointers to its elements
  std::unordered_map<std::string_view, Parameter*> by_name_;
  std::vector<Unit> units_;
};

}  // namespace esp::nn
