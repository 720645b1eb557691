// Mixture of experts except the experts: the router, the permutation of rows by expert, and the weighted combination.
//
// Rows of x are tokens of sequences. Routing is per sequence: load balance and capacity are counted over the sequence's
// own tokens, so results do not depend on the micro-batch or the partition of the batch. A rank that holds only some
// tokens of each sequence (`TokenRows`) receives the loads of the whole.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/routing.h"

namespace esp::autograd {

struct RouterOptions {
  int64_t num_experts = 0, num_chosen = 1;
  bool normalise = false;  // gates, over the chosen
  // The router's auxiliary losses, added to the model's in backward without a seed: per token scale·aux·E·Σ_e f_e·p_e,
  // with f_e the share of e in the choices of the sequence (a constant), and scale·z·(log Σ exp)².
  double aux = 0, z = 0, scale = 0;
};

// The tokens the rows of x belong to.
struct TokenRows {
  int64_t sequences = 1, length = 1;  // over all ranks, in tokens
  tensor::Tensor numbers;             // i32 [rows], sequence·length + token; undefined: 0, 1, 2, …
};

struct Routed {
  Variable gates;                     // [.., chosen], in the accumulation type
  tensor::Tensor choices;             // i32 [.., chosen]
  tensor::Tensor probabilities, lse;  // [.., E], [rows]
  tensor::Tensor slopes;              // [sequences, E]: scale·aux·E·f_e for backward; zero until `balance`
};

// Scores are x·W in the accumulation type. W [dim, E].
Routed route(Tape& tape, const Variable& x, Weight& w, const TokenRows& rows, const RouterOptions& options);

// Sums over the local rows (they add up over ranks of a sequence): E·Σ f_e·p_e and (log Σ exp)². Their means over all
// tokens, times aux and z, are the losses; the first is 1 per token when all experts have equal shares. `loads` i64
// [sequences, E] counts all choices of the whole sequences, dropped ones included. Fills routed.slopes, and `sums` if
// not null.
void balance(const tensor::Context& context, const Routed& routed, const TokenRows& rows, const tensor::Tensor& loads,
             const RouterOptions& options, kernel::RouteSums* sums);

// The permutation of the rows of x, by expert, then token.
struct RowPlacement {
  tensor::Tensor places;   // i32 [rows, chosen]; -1: dropped
  tensor::Tensor sources;  // i32 [M]: row of x at each place
  tensor::Tensor counts;   // i64 [E] on the host: rows per expert; their sum is M
};
// `kept` i32 [.., chosen]: the choices, -1 where dropped.
RowPlacement place_rows(const tensor::Context& context, const tensor::Tensor& kept, int64_t num_experts);

Variable take_rows(Tape& tape, const Variable& x, const RowPlacement& placement);  // → [M, dim]
// y[row] = Σ_j gates[row][j]·rows[places[row][j]], in the shape of `like`.
Variable combine_rows(Tape& tape, const Variable& rows, const Variable& gates, const RowPlacement& placement,
                      const tensor::Shape& like);

}  // namespace esp::autograd
