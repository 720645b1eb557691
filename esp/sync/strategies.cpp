// The table of strategies.
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/sync/all_reduce.h"
#include "esp/sync/gossip/gossip.h"
#include "esp/sync/local/local.h"
#include "esp/sync/ps/layout.h"
#include "esp/sync/ps/ps.h"
#include "esp/sync/strategy.h"
#include "esp/sync/strategy_names.h"
#include "esp/sync/wire.h"
#include "esp/sync/zero/zero.h"

namespace esp::sync {
namespace {

constexpr StrategyRow kStrategies[] = {
    {"allreduce", "whole replicas; all-reduce of gradients (DDP)", make_all_reduce},
    {"zero1", "shards the optimizer state", make_zero1},
    {"zero2", "shards optimizer state and gradients", make_zero2},
    {"zero3", "shards optimizer state, gradients and weights (FSDP)", make_zero3},
    {"ps", "workers push gradients to parameter servers and pull weights", make_ps},
    {"gossip", "replicas average with their neighbours (decentralised SGD)", make_gossip},
    {"local", "replicas take local steps and average periodically (Local SGD, FedAvg)", make_local},
    {"diloco", "local steps, then an outer step with momentum on the mean change", make_diloco},
};

struct MethodAlias {
  std::string_view name, strategy;
};
constexpr MethodAlias kMethodAliases[] = {{"ddp", "allreduce"}, {"fsdp", "zero3"}};

struct Accumulation {
  std::string_view name;
};
constexpr Accumulation kAccumulations[] = {{"auto"}, {"local"}, {"reduced"}};

}  // namespace

std::span<const StrategyRow> strategies() {
  return kStrategies;
}

std::string strategy_name(const std::string& word) {
  for (const MethodAlias& other : kMethodAliases)
    if (other.name == word) return std::string(other.strategy);
  return word;
}

void check_words(const Options& o) {
  find_row("sync.method", kStrategies, o.method, {kMethodAliases[0].name, kMethodAliases[1].name});
  find_row("sync.accumulate", kAccumulations, o.accumulate);
  wire_type(o.wire, DType::f32);
  check_gossip_words(o);
  check_local_words(o);
  check_ps_words(o.ps);
}

std::unique_ptr<Strategy> make_strategy(const Setup& setup) {
  find_row("sync.accumulate", kAccumulations, setup.options.accumulate);
  return find_row("sync.method", kStrategies, setup.options.method).make(setup);
}

}  // namespace esp::sync
