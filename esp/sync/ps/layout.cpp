#include "esp/sync/ps/layout.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"

namespace esp::sync {
namespace {

struct Named {
  std::string_view name;
};
constexpr Named kModes[] = {{"sync"}, {"async"}, {"ssp"}};
constexpr Named kServerRanks[] = {{"beside"}, {"dedicated"}};
constexpr Named kUpdates[] = {{"server"}, {"worker"}};
constexpr Named kExchanges[] = {{"messages"}, {"collectives"}};
constexpr Named kOrders[] = {{"priority"}, {"fifo"}};
constexpr Named kAggregates[] = {{"mean"}, {"median"}, {"trimmed_mean"}};

void want(bool holds, std::string_view key, const auto& given, const std::string& wanted) {
  if (!holds) throw UsageError(fmt::format("sync.{} = {}: {}", key, given, wanted));
}

void check(const PsOptions& o, int num_workers) {
  const bool collectives = o.exchange == "collectives";
  want(!collectives || (o.mode == "sync" && o.server_ranks == "beside" && o.update == "server" &&
                        o.aggregate == "mean" && !o.cross_barrier),
       "exchange", o.exchange,
       "collectives are synchronous sums by ranks that compute: ps_mode = \"sync\", server_ranks = \"beside\", update "
       "= \"server\", aggregate = \"mean\" and no cross_barrier are wanted with it");
  want(o.staleness >= 0, "staleness", o.staleness, "0 (like sync) or more clocks");
  want(o.partition_mb > 0, "partition_mb", o.partition_mb, "more than 0 is wanted");
  want(o.credit >= 1, "credit", o.credit, "at least one partition must be under way");
  want(o.mode == "sync" || o.update == "server", "update", o.update,
       "workers can step only with sums that all share: sync.ps_mode = \"sync\" is wanted with it");
  want(o.mode == "sync" || o.aggregate == "mean", "aggregate", o.aggregate,
       "a server that applies pushes one by one has nothing to choose from: sync.ps_mode = \"sync\" is wanted with it");
  want(o.aggregate != "trimmed_mean" || (o.trim >= 0 && 2 * o.trim < num_workers), "trim", o.trim,
       fmt::format("of {} pushes some must be left when as many are taken from either end", num_workers));
  want(!o.cross_barrier || o.update == "server", "cross_barrier", o.cross_barrier,
       "forward can begin early where servers step: sync.update = \"server\" is wanted with it");
  const bool one_by_one = o.mode != "sync";
  want(one_by_one || (o.record.empty() && o.replay.empty()), "replay", o.record + o.replay,
       "synchronous servers have one order only; it is of async and ssp");
  want(o.record.empty() || o.replay.empty(), "record", o.record, "one is recorded or replayed, not both");
}

}  // namespace

void check_ps_words(const PsOptions& o) {
  find_row("sync.ps_mode", kModes, o.mode);
  find_row("sync.server_ranks", kServerRanks, o.server_ranks);
  find_row("sync.update", kUpdates, o.update);
  find_row("sync.push_order", kOrders, o.push_order);
  find_row("sync.aggregate", kAggregates, o.aggregate);
  find_row("sync.exchange", kExchanges, o.exchange);
}

int ServerLayout::server_at(int rank) const {
  const int server = dedicated ? rank - num_workers : rank;
  return server >= 0 && server < num_servers ? server : -1;
}

std::vector<int> ServerLayout::partitions_of(int server) const {
  std::vector<int> mine;
  for (size_t i = 0; i < partitions.size(); ++i)
    if (partitions[i].server == server) mine.push_back(static_cast<int>(i));
  return mine;
}

int num_workers_of(int num_ranks, const PsOptions& options) {
  check_ps_words(options);
  const bool dedicated = options.server_ranks == "dedicated";
  if (dedicated)
    want(options.servers >= 1 && options.servers < num_ranks, "servers", options.servers,
         fmt::format("dedicated servers are at least 1 and, of {} ranks, at most {}", num_ranks, num_ranks - 1));
  else
    want(options.servers >= 0 && options.servers <= num_ranks, "servers", options.servers,
         fmt::format("0 (all) to {}, the workers beside which they serve", num_ranks));
  const int num_workers = dedicated ? num_ranks - static_cast<int>(options.servers) : num_ranks;
  check(options, num_workers);
  return num_workers;
}

ServerLayout make_server_layout(const nn::ParameterList& parameters, int num_ranks, const PsOptions& options,
                                DType storage) {
  ServerLayout layout;
  layout.num_workers = num_workers_of(num_ranks, options);
  layout.dedicated = options.server_ranks == "dedicated";
  layout.num_servers = options.servers == 0 ? num_ranks : static_cast<int>(options.servers);
  layout.count = parameters.count();
  const auto element = static_cast<int64_t>(size_of(storage));
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(options.partition_mb * (1 << 20)) / element);
  for (int server = 0; server < layout.num_servers; ++server) {
    const comm::Chunk shard = layout.shard(server);
    const auto first = static_cast<int64_t>(shard.offset), last = first + static_cast<int64_t>(shard.count);
    for (size_t u = 0; u < parameters.units().size(); ++u) {
      const auto& unit = parameters.units()[u];
      const int64_t end = std::min(last, unit.first + unit.count);
      for (int64_t at = std::max(first, unit.first); at < end; at += most)
        layout.partitions.push_back({server, static_cast<int>(u), at, std::min(end, at + most)});
    }
  }
  return layout;
}

}  // namespace esp::sync
