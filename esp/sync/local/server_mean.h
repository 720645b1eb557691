// The weighted mean of some copies, made by servers: each has a chunk of the elements, to which the clients push theirs
// and from which all copies pull the mean (FedAvg, McMahan et al. 2017). Who is no client pushes nothing.
//
// Collective over the copies; the same bits on all of them: clients are added in their order.
#pragma once

#include <span>

#include "esp/sync/ranks.h"

namespace esp::sync {

struct Client {
  int copy = 0;
  double weight = 0;  // all together 1
};

// The first num_servers copies serve. `mean` and `x` are of one length and type.
void server_mean(Ranks& copies, const tensor::Context& context, const tensor::Tensor& mean, const tensor::Tensor& x,
                 std::span<const Client> clients, int num_servers);

}  // namespace esp::sync
