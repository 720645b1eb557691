// [sync] options of parameter servers.
#pragma once

#include <cstdint>
#include <string>

namespace esp::sync {

struct PsOptions {
  std::string mode = "sync";            // or async, ssp
  int64_t servers = 0;                  // 0: one per worker
  std::string server_ranks = "beside";  // the first workers serve too; or dedicated: the last ranks only serve
  int64_t staleness = 1;                // ssp: clocks that a worker may be ahead of the slowest
  std::string update = "server";        // the side that runs the optimizer; or worker: servers only sum (BytePS)
  double partition_mb = 4;              // upper bound of one message, MiB
  int64_t credit = 4;                   // partitions in flight per worker
  std::string push_order = "priority";  // in the order in which forward needs them; or fifo
  std::string aggregate = "mean";       // or median, trimmed_mean, per coordinate
  int64_t trim = 1;                     // trimmed_mean: pushes dropped at each end
  bool cross_barrier = false;           // forward starts before all weights have arrived
  std::string exchange = "messages";    // or collectives: push is a reduce, pull a broadcast
  std::string record, replay;           // folder of the order in which servers applied pushes: written, or replayed
};

}  // namespace esp::sync
