// Local steps: copies update themselves and average now and then.
//
// local: the mean of all every tau steps (Local SGD, Stich 2019). With a sample, only the copies drawn for a round
// count in it and all take up their mean; with weights, a copy counts by the tokens it has read (FedAvg, McMahan et al.
// 2017). Before step local_after copies add their gradients instead (post-local SGD, Lin et al. 2020).
//
// diloco: after H inner steps the copies' mean way back, Δ = θ − mean x_i, is the gradient of an outer step with
// Nesterov's momentum: u ← μu + Δ, θ ← θ − η(Δ + μu), and every copy goes on from θ (Douillard et al. 2023). θ and u
// have the same bits everywhere.
#pragma once

#include <vector>

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_local(const Setup& setup);
std::unique_ptr<Strategy> make_diloco(const Setup& setup);
void check_local_words(const Options& options);  // UsageError names one that is not known

// The clients that count in a round, in order: `sample` of `num_clients`, all where it is 0. A function of its
// arguments.
std::vector<int> drawn_clients(uint64_t seed, int64_t round, int num_clients, int64_t sample);

}  // namespace esp::sync
