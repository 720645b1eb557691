// All-gather of a unit's weights from the shards of the ranks. Variants: unchanged; quantised on the wire (qwz); in
// backward from a secondary shard inside the node (hpz). qwz and hpz are parts of ZeRO++ (Wang et al. 2023).
#pragma once

#include <deque>
#include <memory>

#include "esp/sync/quantised/all_gather.h"
#include "esp/sync/quantised/secondary_shard.h"
#include "esp/sync/timed_communicator.h"
#include "esp/sync/zero/unit_window.h"

namespace esp::sync {

// `shards` contains this rank's chunk of each unit; not owned.
class PlainGather final : public UnitGather {
 public:
  PlainGather(TimedCommunicator& ranks, const std::vector<tensor::Tensor>& shards);
  void start(size_t unit, const tensor::Tensor& whole) override;
  void finish(size_t unit, const tensor::Tensor& whole) override;
  double exposed_ms() const override { return ranks_.exposed_ms(); }

 private:
  TimedCommunicator& ranks_;
  const std::vector<tensor::Tensor>& shards_;
  std::vector<Work> works_;
};

class NodeGather final : public UnitGather {
 public:
  struct Options {
    Encoding encoding{.bits = 0};
    bool secondary = false;
    Duration timeout = std::chrono::minutes(10);
  };
  NodeGather(const NodeGrid& nodes, const tensor::Context& context, const nn::ParameterList& parameters,
             const std::vector<tensor::Tensor>& shards, DType storage, const Options& options);
  void start(size_t unit, const tensor::Tensor& whole) override;
  void finish(size_t unit, const tensor::Tensor& whole) override;
  double exposed_ms() const override;
  void values_changed() override;

 private:
  const std::vector<tensor::Tensor>& shards_;
  const Options options_;
  std::deque<QuantisedGather> gathers_;
  std::deque<SecondaryShard> secondary_;  // one per unit; empty without hpz
  std::vector<bool> from_node_;           // [unit]: the gather in flight reads the secondary shards of this node
};

}  // namespace esp::sync
