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

void require(bool holds, std::string_view key, const auto& given, const std::string& expected) {
  if (!holds) throw UsageError(fmt::format("sync.{}: got {}; {}", key, given, expected));
}

void check(const PsOptions& o, int num_workers) {
  const bool collectives = o.exchange == "collectives";
  require(!collectives || (o.mode == "sync" && o.server_ranks == "beside" && o.update == "server" &&
                           o.aggregate == "mean" && !o.cross_barrier),
          "exchange", o.exchange,
          "expected messages, because collectives needs ps_mode = \"sync\", server_ranks = \"beside\", update = "
          "\"server\", "
          "aggregate = \"mean\" and cross_barrier = false");
  require(o.staleness >= 0, "staleness", o.staleness,
          "expected at least 0 steps (0 is the same as ps_mode = \"sync\")");
  require(o.partition_mb > 0, "partition_mb", o.partition_mb, "expected a number > 0");
  require(o.credit >= 1, "credit", o.credit, "expected at least 1 partition in flight");
  require(o.mode == "sync" || o.update == "server", "update", o.update,
          "expected server, because workers can update only with a global sum. Or set sync.ps_mode = \"sync\"");
  require(o.mode == "sync" || o.aggregate == "mean", "aggregate", o.aggregate,
          "expected mean, because robust aggregation needs the pushes of all workers. Or set sync.ps_mode = \"sync\"");
  require(o.aggregate != "trimmed_mean" || (o.trim >= 0 && 2 * o.trim < num_workers), "trim", o.trim,
          fmt::format("expected at least 0 and less than half of the {} workers", num_workers));
  require(!o.cross_barrier || o.update == "server", "cross_barrier", o.cross_barrier,
          "expected false, because forward can begin early only if servers update. Or set sync.update = \"server\"");
  const bool asynchronous = o.mode != "sync";
  require(
      asynchronous || (o.record.empty() && o.replay.empty()), "replay", o.record + o.replay,
      "expected no folder, because synchronous servers have a fixed order. Or set sync.ps_mode = \"async\" or \"ssp\"");
  require(o.record.empty() || o.replay.empty(), "record", o.record,
          "cannot be combined with sync.replay. Remove one of them");
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
  if (dedicated) {
    require(num_ranks >= 2, "server_ranks", options.server_ranks,
            "expected at least 2 ranks, a worker and a server; this run has 1. Start more ranks (--nproc 2)");
    require(options.servers >= 1 && options.servers < num_ranks, "servers", options.servers,
            fmt::format("expected 1 to {} dedicated servers with {} ranks", num_ranks - 1, num_ranks));
  } else {
    require(options.servers >= 0 && options.servers <= num_ranks, "servers", options.servers,
            fmt::format("expected 0 (all) to {}, the number of workers", num_ranks));
  }
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
