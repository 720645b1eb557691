// Mixture of experts, all but the experts: the router, the way of rows to their places and the weighted way back.
//
// Rows of x are tokens of sequences. A sequence is what is routed together: its balance and its experts' capacity are
// counted over its own tokens, so neither the micro-batch nor any division of the batch shows in a number. Where a
// holder has only some tokens of each sequence (`Rows`), it is told the loads of the whole.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/routing.h"

namespace esp::autograd {

struct RouterOptions {
  int64_t num_experts = 0, num_chosen = 1;
  bool normalise = false;  // gates, over the chosen
  // The routing's own losses, added to the model's in backward without a seed: per token scale·aux·E·Σ_e f_e·p_e, with
  // f_e the share of e in the choices of the sequence (a constant), and scale·z·(log Σ exp)².
  double aux = 0, z = 0, scale = 0;
};

// Which tokens the rows of x are.
struct Rows {
  int64_t sequences = 1, length = 1;  // of all holders together, in tokens
  tensor::Tensor numbers;             // i32 [rows], sequence·length + token; undefined: 0, 1, 2, …
};

struct Routed {
  Variable gates;                     // [.., chosen], in the accumulation type
  tensor::Tensor choices;             // i32 [.., chosen]
  tensor::Tensor probabilities, lse;  // [.., E], [rows]
  tensor::Tensor slopes;  // [sequences, E]: what backward takes for scale·aux·E·f_e; zero until `balance`
};

// Scores are x·W in the accumulation type, whatever x is stored in. W [dim, E].
Routed route(Tape& tape, const Variable& x, Weight& w, const Rows& rows, const RouterOptions& options);

// Sums over the rows here, so over holders of a sequence they add up: E·Σ f_e·p_e and (log Σ exp)². Their means over
// all tokens, times aux and z, are the losses; the first is 1 for a token where all experts have equal shares. `loads`
// i64 [sequences, E] has all choices of the whole sequences, dropped ones included. Fills routed.slopes, and the sums
// where they are wanted.
void balance(const tensor::Context& context, const Routed& routed, const Rows& rows, const tensor::Tensor& loads,
             const RouterOptions& options, kernel::RouteSums* sums);

// Where the rows of x go: ordered by expert, then token.
struct Placement {
  tensor::Tensor places;   // i32 [rows, chosen]; -1: dropped
  tensor::Tensor sources;  // i32 [M]: the row of x at each place
  tensor::Tensor counts;   // i64 [E], with the host: rows of each expert; their sum is M
};
// `kept` i32 [.., chosen]: the choices, -1 where dropped.
Placement place(const tensor::Context& context, const tensor::Tensor& kept, int64_t num_experts);

Variable take_rows(Tape& tape, const Variable& x, const Placement& placement);  // → [M, dim]
// y[row] = Σ_j gates[row][j]·rows[places[row][j]], in the shape of `like`.
Variable combine(Tape& tape, const Variable& rows, const Variable& gates, const Placement& placement,
                 const tensor::Shape& like);

}  // namespace esp::autograd
