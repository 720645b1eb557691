// The parameters of a model: named, counted before allocation, stored flat once allocated.
//
// Layers add parameters while they are built; memory is allocated by `materialize`. Parameters are grouped in units
// (stem, each block, head). A unit's values are contiguous in one tensor and its gradients in another: the granularity
// of optimizers, buckets and shards. Initial values are a function of (seed, name, element index), independent of the
// rank and of the order of creation.
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
  double scale = 0;  // standard deviation, or half the width

  static Init zeros() { return {Distribution::zero, 0}; }
  static Init ones() { return {Distribution::one, 0}; }
  static Init normal(double deviation) { return {Distribution::normal, deviation}; }
  static Init uniform(double half_width) { return {Distribution::uniform, half_width}; }
};

struct Parameter {
  std::string name;            // "blocks.3.attention.qkv.weight"
  tensor::Shape shape;         // of the local shard
  tensor::Shape global_shape;  // of the whole parameter
  int cut_dim = -1;            // the sharded dimension; -1: not sharded
  std::vector<IndexRange>
      sections;         // of the whole parameter, along cut_dim, in the order in which they lie here; else empty
  bool counted = true;  // in sums over the model's parameters; false for replicas along the tensor axis
  // Under sequence parallelism a replicated parameter gets the gradient of the local tokens only.
  bool partial = false;
  Init init;
  bool decay = false;  // weight decay: for matrices, not for vectors
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
    int64_t first = 0, count = 0;  // in elements; first: offset among all units
    tensor::Tensor values, grads;  // flat [count]; undefined before materialize (grads: without gradients)
  };

  explicit ParameterList(const ModelShards& shares = {}) : shares_(shares) {}
  const ModelShards& shares() const { return shares_; }

  void begin_unit(std::string name);  // later parameters belong to it
  // Later parameters of this unit see all tokens on every rank.
  void set_full_sequence() { whole_tokens_ = true; }
  // `shape` is the whole parameter's.
  Parameter& add(std::string name, const tensor::Shape& shape, Init init, bool decay, const ShardSpec& cut = {});

  // Allocates all units: values in one run, in order, and gradients likewise.
  void materialize(const tensor::Context& context, DType dtype, bool gradients);
  // The same per unit, for owners of partial storage: `flat` [count] becomes the unit's storage (undefined: none).
  void bind_values(Unit& unit, tensor::Tensor flat);
  void bind_gradients(Unit& unit, tensor::Tensor flat);
  void initialise(uint64_t seed, const device::Stream& stream);
  void initialise(Unit& unit, uint64_t seed, const device::Stream& stream);
  void zero_gradients(const device::Stream& stream);
  // The same for a step that is about to add: gradients are only marked stale (Weight::stale), except vectors on a CPU.
  // A reader of `grads` calls `clear_stale_gradients` first, which zeroes the gradients nothing was added to.
  void mark_gradients_stale(const device::Stream& stream);
  void clear_stale_gradients(const device::Stream& stream);

  int64_t count() const;                   // elements of all
  Parameter& find(std::string_view name);  // UsageError naming the nearest
  Parameter* find_or_null(std::string_view name);
  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  std::vector<Unit>& units() { return units_; }
  const std::vector<Unit>& units() const { return units_; }

 private:
  ModelShards shares_;
  bool whole_tokens_ = false;
  std::deque<Parameter> parameters_;  // stable addresses: layers and tapes point here
  std::unordered_map<std::string_view, Parameter*> by_name_;
  std::vector<Unit> units_;
};

}  // namespace esp::nn
