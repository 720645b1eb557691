// Operators of the dry-run layers. Each allocates the same buffers and records the same node as the operator that it
// models in esp/autograd, esp/parallel/tp or esp/parallel/cp.
#pragma once

#include <vector>

#include "esp/plan/dry_run/layers.h"

namespace esp::plan::dry_run {

inline constexpr int64_t kStatisticBytes = 4;  // bytes per value of norm and softmax statistics (fp32)

// The list without its null pointers (biases that the model does not have).
std::vector<DryRunWeight*> non_null(std::initializer_list<DryRunWeight*> weights);
void use_weight(DryRunTape& tape, DryRunWeight* weight);

DryRunVariable add(DryRunTape& tape, const DryRunVariable& a, const DryRunVariable& b);
DryRunVariable dropout(DryRunTape& tape, const RankSizes& s, const DryRunVariable& x);
DryRunVariable add_bias(DryRunTape& tape, const DryRunVariable& x, DryRunWeight* b);
DryRunVariable rotary(DryRunTape& tape, const DryRunVariable& x);

struct NormOutputs {
  DryRunVariable sum, y;
};
// Norm of the sum x + branch. Without a branch, the output `sum` is x itself.
NormOutputs norm(DryRunTape& tape, const RankSizes& s, const DryRunVariable& x, const DryRunVariable& branch,
                 DryRunWeight* gamma, DryRunWeight* beta);

// Linear layers, column-parallel and row-parallel over the tensor group; unsharded if tp = 1. The bias `b` may be null.
DryRunVariable column_parallel(DryRunTape& tape, const RankSizes& s, const DryRunVariable& x, int64_t out,
                               DryRunWeight* w, DryRunWeight* b);
DryRunVariable row_parallel(DryRunTape& tape, const RankSizes& s, const DryRunVariable& h, DryRunWeight* w,
                            DryRunWeight* b);
// `keep`: forward stores the output of the activation function for backward; otherwise backward recomputes it.
DryRunVariable mlp(DryRunTape& tape, const RankSizes& s, const DryRunVariable& x, const BlockWeights& w, bool keep);

DryRunVariable attention(DryRunTape& tape, const RankSizes& s, const DryRunVariable& qkv);

}  // namespace esp::plan::dry_run
