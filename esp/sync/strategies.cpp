// The table of strategies.
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/sync/all_reduce.h"
#include "esp/sync/gossip/gossip.h"
#include "esp/sync/local/local.h"
#include "esp/sync/ps/layout.h"
#include "esp/sync/ps/ps.h"
#include "esp/sync/strategy.h"
#include "esp/sync/wire.h"
#include "esp/sync/zero/zero.h"

namespace esp::sync {
namespace {

constexpr StrategyRow kStrategies[] = {
    {"allreduce", "whole copies that sum their gradients (DDP)", make_all_reduce},
    {"zero1", "each rank keeps its share of the optimizer's state", make_zero1},
    {"zero2", "and of the gradients", make_zero2},
    {"zero3", "and of the values (FSDP)", make_zero3},
    {"ps", "workers push gradients to servers of shares of the model and pull its values (parameter server)", make_ps},
    {"gossip", "copies that average with their neighbours", make_gossip},
    {"local", "copies that take steps of their own and average now and then (Local SGD, FedAvg)", make_local},
    {"diloco", "and whose mean way is an outer step with momentum", make_diloco},
};

struct Accumulation {
  std::string_view name;
};
constexpr Accumulation kAccumulations[] = {{"auto"}, {"local"}, {"reduced"}};

}  // namespace

std::span<const StrategyRow> strategies() {
  return kStrategies;
}

void check_words(const Options& o) {
  find_row("sync.method", kStrategies, o.method);
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
