// Layer operations that keep for backward exactly the activations the textbook formula counts (Korthikanti et al.
// 2022): besides the inputs of every GEMM and norm, attention's T×T matrices (probabilities, byte mask, dropout output)
// and a byte mask per dropout. In 16 bits sbh·(34 + 5as/h) bytes per layer of GPT, sharded as the mesh shards it:
// sbh·(10 + 24/t + 5as/(ht)) over a tensor axis of t, (sbh/t)·(34 + 5as/h) with sequence parallel.
//
// Computes the same function as make_regions, whose attention keeps no matrix and whose dropout recomputes masks.
// Selective recomputation recomputes the attention core here, and the MLP activation there. UsageError with a context
// axis: block-wise attention stores no matrix. Cross attention and experts keep their usual activations.
#pragma once

#include "esp/parallel/regions.h"

namespace esp::parallel {

// UsageError where a context axis divides tokens: its attention is a walk over blocks that stores no matrix. Cross
// attention and experts keep what they keep otherwise.
std::unique_ptr<ParallelRegions> make_textbook_regions(const Mesh& mesh, const RegionOptions& options);

}  // namespace esp::parallel
