// What a run file says of parameter servers.
#pragma once

#include <cstdint>
#include <string>

namespace esp::sync {

struct PsOptions {
  std::string mode = "sync";            // or async, ssp
  int64_t servers = 0;                  // 0: as many as workers
  std::string server_ranks = "beside";  // the first workers serve too; or dedicated: the last ranks, which only serve
  int64_t staleness = 1;                // ssp: clocks that a worker may be ahead of the slowest
  std::string update = "server";        // who steps; or worker: servers only add up (BytePS)
  double partition_mb = 4;              // most that travels as one message, MiB
  int64_t credit = 4;                   // partitions under way from one worker
  std::string push_order = "priority";  // what forward needs first goes first; or fifo
  std::string aggregate = "mean";       // or median, trimmed_mean, coordinate by coordinate
  int64_t trim = 1;                     // trimmed_mean: pushes left out at either end
  bool cross_barrier = false;           // forward begins with the values that are in
  std::string exchange = "messages";    // or collectives: push is a reduce, pull a broadcast
  std::string record, replay;           // folder of the orders in which servers applied pushes: written, or followed
};

}  // namespace esp::sync
