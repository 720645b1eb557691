// Weighted mean by parameter servers: each server owns a chunk of the elements. Clients push their weights to the
// servers, and all replicas pull the mean (FedAvg, McMahan et al. 2017). A replica that is not a client pushes nothing.
//
// Collective over the replicas. Clients are added in order, so the mean is bit-identical on all replicas.
#pragma once

#include <span>

#include "esp/sync/timed_communicator.h"

namespace esp::sync {

struct MeanClient {
  int replica = 0;    // index of the replica that is this client
  double weight = 0;  // weight of this client; the weights of all clients sum to 1
};

// Writes the weighted mean of x to `mean`. The first num_servers replicas are the servers. `mean` and `x` have the same
// length and type.
void server_mean(TimedCommunicator& replicas, const tensor::Context& context, const tensor::Tensor& mean,
                 const tensor::Tensor& x, std::span<const MeanClient> clients, int num_servers);

}  // namespace esp::sync
