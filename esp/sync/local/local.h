// Local SGD: replicas take local steps and average periodically.
//
// local: the replicas average every tau steps (Local SGD, Stich 2019). With `sample`, only the replicas drawn for a
// round contribute, and all replicas take the mean. With client_weights, a replica's weight is the number of tokens it
// has read (FedAvg, McMahan et al. 2017). Before step local_after gradients are all-reduced instead (post-local SGD,
// Lin et al. 2020).
//
// diloco: after H inner steps the mean change Δ = θ − mean x_i is the gradient of an outer step with Nesterov momentum:
// u ← μu + Δ, θ ← θ − η(Δ + μu). Every replica continues from θ (Douillard et al. 2023). θ and u are bit-identical on
// all ranks.
#pragma once

#include <vector>

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_local(const Setup& setup);
std::unique_ptr<Strategy> make_diloco(const Setup& setup);
void check_local_words(const Options& options);  // throws UsageError if a local SGD option has an unknown value

// The clients sampled for a round, in ascending order: `sample` of num_clients; if sample = 0, all. A pure function.
std::vector<int> sampled_clients(uint64_t seed, int64_t round, int num_clients, int64_t sample);

}  // namespace esp::sync
