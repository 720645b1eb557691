// Server layout: divides the flat elements of all units into K contiguous balanced ranges, one per server. Each range
// is divided into partitions, the unit of transfer.
//
// A partition lies inside one unit and is at most sync.partition_mb large. Its priority is the index of its unit,
// because forward needs the units in that order. Every rank computes the same layout.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/comm/call.h"
#include "esp/nn/parameter.h"
#include "esp/sync/ps/options.h"

namespace esp::sync {

struct Partition {
  int server = 0, unit = 0;
  int64_t begin = 0, end = 0;  // element range, counted over all units
  int64_t count() const { return end - begin; }
};

struct ServerLayout {
  int num_workers = 1, num_servers = 1;
  bool dedicated = false;  // true: servers are the ranks after the workers; false: the first workers are servers too
  int64_t count = 0;       // number of elements of all units
  std::vector<Partition> partitions;  // sorted by element range

  int rank_of(int server) const { return dedicated ? num_workers + server : server; }
  int server_at(int rank) const;  // index of the server that runs on this rank; -1: no server runs there
  bool works(int rank) const { return rank < num_workers; }
  comm::Chunk shard(int server) const { return comm::chunk_of(static_cast<size_t>(count), num_servers, server); }
  std::vector<int> partitions_of(int server) const;
};

// Throws UsageError if the options cannot be satisfied.
ServerLayout make_server_layout(const nn::ParameterList& parameters, int num_ranks, const PsOptions& options,
                                DType storage);
// Throws UsageError if an option has an unknown value.
void check_ps_words(const PsOptions& options);
// The number of workers of a job with num_ranks ranks. Also checks the other options of parameter servers; throws
// UsageError if one is invalid.
int num_workers_of(int num_ranks, const PsOptions& options);

}  // namespace esp::sync
