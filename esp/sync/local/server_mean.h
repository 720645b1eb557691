// Weighted mean by parameter servers: each server owns a chunk of the elements; clients push their weights to it and
// all replicas pull the mean (FedAvg, McMahan et al. 2017). A replica that is not a client pushes nothing.
//
// Collective over the replicas; bit-identical on all of them: clients are added in order.
#pragma once

#include <span>

#include "esp/sync/timed_communicator.h"

namespace esp::sync {

struct MeanClient {
  int copy = 0;
  double weight = 0;  // the sum over all is 1
};

// The first num_servers replicas are the servers. `mean` and `x` have the same length and type.
void server_mean(TimedCommunicator& replicas, const tensor::Context& context, const tensor::Tensor& mean,
                 const tensor::Tensor& x, std::span<const MeanClient> clients, int num_servers);

}  // namespace esp::sync
