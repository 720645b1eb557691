// The options of parameter servers in the [sync] section of a run file.
#pragma once

#include <cstdint>
#include <string>

namespace esp::sync {

struct PsOptions {
  std::string mode = "sync";  // sync, async, or ssp (stale-synchronous)
  int64_t servers = 0;        // number of servers; 0: one per worker
  // beside: the first workers are servers too; dedicated: the last ranks are servers and not workers
  std::string server_ranks = "beside";
  int64_t staleness = 1;                // ssp: how many steps a worker may be ahead of the slowest worker
  std::string update = "server";        // where the optimizer runs: server, or worker (servers only sum, as in BytePS)
  double partition_mb = 4;              // maximum size of a message, in MiB
  int64_t credit = 4;                   // maximum number of partitions in flight per worker
  std::string push_order = "priority";  // priority (in the order in which forward needs the partitions), or fifo
  std::string aggregate = "mean";       // how pushes are combined, per coordinate: mean, median or trimmed_mean
  int64_t trim = 1;                     // trimmed_mean: number of pushes dropped at each end, smallest and largest
  bool cross_barrier = false;           // true: forward starts before all weights have arrived
  std::string exchange = "messages";    // messages, or collectives (a push is a reduce, a pull is a broadcast)
  std::string record, replay;  // folders of application orders: `record` is written, `replay` is read and followed
};

}  // namespace esp::sync
