// Server layout: divides the flat elements of all units into K contiguous balanced ranges, one per server, and every
// range into partitions, the unit of transfer.
//
// A partition is inside one unit and has at most the given bytes; its priority is the unit's index, the order in which
// forward needs it. Pure: equal on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/comm/call.h"
#include "esp/nn/parameter.h"
#include "esp/sync/ps/options.h"

namespace esp::sync {

struct Partition {
  int server = 0, unit = 0;
  int64_t begin = 0, end = 0;  // elements, over all units
  int64_t count() const { return end - begin; }
};

struct ServerLayout {
  int num_workers = 1, num_servers = 1;
  bool dedicated = false;             // servers are the ranks after the workers; otherwise the first workers
  int64_t count = 0;                  // elements
  std::vector<Partition> partitions;  // in order of their elements

  int rank_of(int server) const { return dedicated ? num_workers + server : server; }
  int server_at(int rank) const;  // -1: not a server
  bool works(int rank) const { return rank < num_workers; }
  comm::Chunk shard(int server) const { return comm::chunk_of(static_cast<size_t>(count), num_servers, server); }
  std::vector<int> partitions_of(int server) const;
};

// UsageError for an impossible division.
ServerLayout make_server_layout(const nn::ParameterList& parameters, int num_ranks, const PsOptions& options,
                                DType storage);
// UsageError for an unknown word of the options.
void check_ps_words(const PsOptions& options);
// Number of workers of a job of `size` ranks; UsageError as above. Checks the other options too.
int num_workers_of(int num_ranks, const PsOptions& options);

}  // namespace esp::sync
