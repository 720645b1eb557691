// Layer operations that store for backward exactly the activations of the textbook formula (Korthikanti et al. 2022).
// They store the inputs of every GEMM and norm, the T×T matrices of attention (probabilities, byte mask, dropout
// output), and a byte mask per dropout. In 16 bits a GPT layer stores sbh·(34 + 5as/h) bytes, sharded as the mesh
// shards it: sbh·(10 + 24/t + 5as/(ht)) over a tensor axis of t, (sbh/t)·(34 + 5as/h) with sequence parallel.
//
// Computes the same function as make_model_parallel_ops, whose attention stores no matrix and whose dropout recomputes
// masks. With selective recomputation, these operations recompute the attention core; the operations of
// make_model_parallel_ops recompute the activation of the MLP. Cross attention and experts store their usual
// activations.
#pragma once

#include "esp/parallel/model_parallel_ops.h"

namespace esp::parallel {

// Throws UsageError if a context axis shards the tokens: attention then works block by block and stores no matrix.
std::unique_ptr<ModelParallelOps> make_textbook_ops(const Mesh& mesh, const ModelParallelOptions& options);

}  // namespace esp::parallel
