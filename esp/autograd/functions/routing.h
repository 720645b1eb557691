// Mixture-of-experts (MoE) routing: the router, the permutation of rows by expert, and the weighted sum of the experts'
// outputs. The experts themselves are in experts.h.
//
// Rows of x are tokens of sequences. Routing is per sequence: load and capacity are counted over the tokens of one
// sequence. Results therefore do not depend on the micro-batch size or on how ranks divide the batch. If a rank holds
// only some tokens of each sequence (`TokenRows`), it still needs the expert loads of the whole sequences.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/routing.h"

namespace esp::autograd {

struct RouterOptions {
  int64_t num_experts = 0, num_chosen = 1;
  bool normalise = false;  // scales the gates of a row so that their sum is 1
  // Coefficients of the load-balancing loss (aux) and the router z-loss (z). Per token these losses are
  // scale·aux·E·Σ_e f_e·p_e and scale·z·(log Σ exp)². f_e is the fraction of the sequence's choices that chose expert
  // e; backward treats it as a constant. Backward adds the gradients of both losses without a seed.
  double aux = 0, z = 0, scale = 0;
};

// Maps the rows of x to tokens of sequences.
struct TokenRows {
  int64_t sequences = 1, length = 1;  // sequences: over all ranks; length: tokens per sequence
  tensor::Tensor numbers;             // i32 [rows]: sequence·length + token for each row; undefined: 0, 1, 2, …
};

struct RouterOutput {
  Variable gates;                     // [.., chosen], in the accumulation type
  tensor::Tensor choices;             // i32 [.., chosen]
  tensor::Tensor probabilities, lse;  // [.., E], [rows]
  // [sequences, E]: scale·aux·E·f_e, the gradient of the load-balancing loss; set by compute_router_losses
  tensor::Tensor slopes;
};

// Computes the gates from the scores x·W, W [dim, E]. Scores are in the accumulation type.
RouterOutput route(Tape& tape, const Variable& x, Weight& w, const TokenRows& rows, const RouterOptions& options);

// Computes two sums over the local rows: E·Σ_e f_e·p_e for the load-balancing loss (1 per token if the load is
// balanced) and (log Σ exp)² for the router z-loss. If several ranks share a sequence, add their sums. Each loss is the
// mean of its sum over all tokens, times aux or z. `loads` i64 [sequences, E] counts all choices of the whole
// sequences, including dropped ones. Writes routed.slopes, and `sums` if it is not null.
void compute_router_losses(const tensor::Context& context, const RouterOutput& routed, const TokenRows& rows,
                           const tensor::Tensor& loads, const RouterOptions& options, kernel::RouteSums* sums);

// A permutation that orders the rows of x by expert, then by token.
struct ExpertPermutation {
  tensor::Tensor places;   // i32 [rows, chosen]: position of each choice in the permuted rows; -1: dropped
  tensor::Tensor sources;  // i32 [M]: the row of x at each position
  tensor::Tensor counts;   // i64 [E] on the host: rows per expert; their sum is M
};
// `kept` i32 [.., chosen]: the chosen experts, -1 where the choice is dropped.
ExpertPermutation sort_rows_by_expert(const tensor::Context& context, const tensor::Tensor& kept, int64_t num_experts);

// Copies rows of x in the order of the permutation → [M, dim].
Variable permute_rows(Tape& tape, const Variable& x, const ExpertPermutation& permutation);
// y[row] = Σ_j gates[row][j]·rows[places[row][j]], in the shape of `like`. Dropped choices add nothing.
Variable unpermute_rows(Tape& tape, const Variable& rows, const Variable& gates, const ExpertPermutation& permutation,
                        const tensor::Shape& like);

}  // namespace esp::autograd
