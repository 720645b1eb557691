// How a unit's values come together from the ranks' shards: as they are, or the ways of ZeRO++ (Wang et al. 2023) for
// slow networks: quantised on the wire (qwz), and in backward from a second shard inside the node (hpz).
#pragma once

#include <deque>
#include <memory>

#include "esp/sync/quantised/all_gather.h"
#include "esp/sync/quantised/secondary_shard.h"
#include "esp/sync/ranks.h"
#include "esp/sync/zero/unit_window.h"

namespace esp::sync {

// `shards` by unit, this rank's chunk of each; lent.
class PlainGather final : public UnitGather {
 public:
  PlainGather(Ranks& ranks, const std::vector<tensor::Tensor>& shards);
  void start(size_t unit, const tensor::Tensor& whole) override;
  void finish(size_t unit, const tensor::Tensor& whole) override;
  double exposed_ms() const override { return ranks_.exposed_ms(); }

 private:
  Ranks& ranks_;
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
  NodeGather(const Nodes& nodes, const tensor::Context& context, const nn::ParameterList& parameters,
             const std::vector<tensor::Tensor>& shards, DType storage, const Options& options);
  void start(size_t unit, const tensor::Tensor& whole) override;
  void finish(size_t unit, const tensor::Tensor& whole) override;
  double exposed_ms() const override;
  void values_changed() override;

 private:
  const std::vector<tensor::Tensor>& shards_;
  const Options options_;
  std::deque<QuantisedGather> gathers_;
  std::deque<SecondaryShard> secondary_;  // empty without
  std::vector<bool> from_node_;           // the gather under way is of the second shard
};

}  // namespace esp::sync
