// Gossip: copies average with their neighbours only, in every step (decentralised SGD).
//
// adapt_then_combine: a copy updates itself, then averages: x ← W(x − γg). combine_then_adapt: it averages first and
// takes the gradient of the average. adapt_with_combine: neighbours' values travel while the gradient of its own is
// made, x ← Wx − γg (Lian et al. 2017). With a period H every H-th average is of all (Gossip-PGA, Chen et al. 2021).
// With tracking the optimizer gets y in place of g, y ← W(y + g − g_before), which follows the mean gradient of all
// copies and so takes away the bias of copies whose data differ (Di Lorenzo and Scutari 2016; Nedić et al. 2017).
//
// With sync.compress neighbours are told moves as codes (told_moves.h).
//
// In a hierarchy the first copies of the nodes gossip and tell theirs.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_gossip(const Setup& setup);
void check_gossip_words(const Options& options);  // UsageError names one that is not known

}  // namespace esp::sync
