// The verbs of layers by which a block keeps for backward what the textbook counts (Korthikanti et al. 2022): beside
// the inputs of every product and norm, attention's T×T matrices (probabilities, byte mask, what dropout left of them)
// and a byte mask of every dropout. In 16 bits sbh·(34 + 5as/h) bytes per layer of GPT, divided as the mesh divides it:
// sbh·(10 + 24/t + 5as/(ht)) over a tensor axis of t, (sbh/t)·(34 + 5as/h) where that divides the stream's rows too.
//
// The same function of the same parameters as make_regions, whose attention keeps no matrix and which draws masks
// again; selective recomputation computes attention's core again here, and the activation of perceptrons there.
#pragma once

#include "esp/parallel/regions.h"

namespace esp::parallel {

// UsageError where a context axis divides tokens: its attention is a walk over blocks that stores no matrix. Cross
// attention and experts keep what they keep otherwise.
std::unique_ptr<Regions> make_textbook_regions(const Mesh& mesh, const RegionOptions& options);

}  // namespace esp::parallel
