// Gossip (decentralised SGD): in every step each replica averages with its neighbours only.
//
//   adapt_then_combine   update, then average: x ← W(x − γg)
//   combine_then_adapt   average, then update with the gradient at the average
//   adapt_with_combine   neighbours' weights are exchanged while the local gradient is computed: x ← Wx − γg
//                        (Lian et al. 2017)
//
// With a period H, every H-th average is global (Gossip-PGA, Chen et al. 2021). With tracking, the optimizer gets y
// instead of g: y ← W(y + g − g_before). y follows the mean gradient of all replicas, which removes the bias of
// replicas with different data (Di Lorenzo and Scutari 2016; Nedić et al. 2017).
//
// With sync.compress a replica sends its compressed change (move_log.h).
//
// In a hierarchy the first rank of each node exchanges with other nodes and broadcasts the average inside its node.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_gossip(const Setup& setup);
void check_gossip_words(const Options& options);  // throws UsageError if a gossip option has an unknown value

}  // namespace esp::sync
