// Who serves which elements: the flat elements of all units in K contiguous balanced ranges, one per server, and every
// range in partitions, which are what travels.
//
// A partition lies in one unit and has at most the bytes asked for; its priority is the unit's place, which is when
// forward needs it. Pure: every rank makes the same.
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
  bool dedicated = false;             // servers are the ranks after the workers; else the first workers
  int64_t count = 0;                  // elements
  std::vector<Partition> partitions;  // in order of their elements

  int rank_of(int server) const { return dedicated ? num_workers + server : server; }
  int server_at(int rank) const;  // -1: none
  bool works(int rank) const { return rank < num_workers; }
  comm::Chunk shard(int server) const { return comm::chunk_of(static_cast<size_t>(count), num_servers, server); }
  std::vector<int> partitions_of(int server) const;
};

// UsageError where so many ranks cannot be divided so.
ServerLayout make_server_layout(const nn::ParameterList& parameters, int num_ranks, const PsOptions& options,
                                DType storage);
// UsageError names a word of the options that is not known.
void check_ps_words(const PsOptions& options);
// Workers of a job of so many ranks; UsageError as above. What else the options must be is checked too.
int num_workers_of(int num_ranks, const PsOptions& options);

}  // namespace esp::sync
