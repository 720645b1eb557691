// Mixture of experts: to which experts a token goes and with what weight, and the rows that go there and come back.
//
// A row's choices are its `num_chosen` most probable experts, the most probable first and, of equals, the lower number
// first. Scores, probabilities and gates are in the accumulation type (f32, or f64). A place is a row of the buffer in
// which rows are ordered by expert and then by token; -1 is a choice that was dropped. Outputs are overwritten unless
// said. All of it is the same for any number of threads.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct RouteShape {
  int64_t rows = 0, num_experts = 0, num_chosen = 0;
  bool normalise = false;  // gates are shares of what the chosen have together, else the probabilities themselves
};

// probabilities[r] = softmax(logits[r]), lse[r] = log Σ exp, choices[r] and gates[r] of num_chosen each.
void route_forward(void* probabilities, void* lse, int32_t* choices, void* gates, const void* logits,
                   const RouteShape& shape, DType dtype, const device::Stream& stream);

// What the routing's own losses add to the gradient: Σ_e slopes[group of r][e]·p_e and z·lse².
struct RouteLosses {
  const void* slopes = nullptr;  // [groups, num_experts]; null: none
  int64_t rows_per_group = 1;
  const int32_t* numbers = nullptr;  // of the rows, where they are not 0, 1, 2, …; number / rows_per_group is the group
  double z = 0;
};
// dlogits, from the gradient of the gates (null: zero) and of the losses.
void route_backward(void* dlogits, const void* dgates, const void* probabilities, const void* lse,
                    const int32_t* choices, const RouteLosses& losses, const RouteShape& shape, DType dtype,
                    const device::Stream& stream);

// slopes[g][e] = scale·E·f_e, f_e being e's share of the loads of group g, of which there are `groups`; and where
// `sums` (the host's) are wanted, those over the rows of E·Σ_e f_e·p_e and lse². `losses` names the groups.
struct RouteSums {
  double balance = 0, z = 0;
};
void route_losses(void* slopes, RouteSums* sums, const void* probabilities, const void* lse, const int64_t* loads,
                  int64_t groups, double scale, const RouteLosses& losses, const RouteShape& shape, DType dtype,
                  const device::Stream& stream);

// counts[g][e]: how often e was chosen in group g, of `per_group` choices. Negative choices do not count.
void count_choices(int64_t* counts, const int32_t* choices, int64_t groups, int64_t per_group, int64_t num_experts,
                   const device::Stream& stream);

// Rows of `width` among numbered ones: here[r] = all[numbers[r]], and the other way.
void pick_choices(int32_t* here, const int32_t* all, const int32_t* numbers, int64_t rows, int64_t width,
                  const device::Stream& stream);
void put_choices(int32_t* all, const int32_t* here, const int32_t* numbers, int64_t rows, int64_t width,
                 const device::Stream& stream);

// kept = choices, but −1 for those that find their expert full: an expert takes `capacity` rows of each group of
// `tokens`, first choices of all tokens in their order, then second choices, and so on.
void drop_overflow(int32_t* kept, const int32_t* choices, int64_t groups, int64_t tokens, int64_t num_chosen,
                   int64_t num_experts, int64_t capacity, const device::Stream& stream);

// Places by (expert, row): places [rows, num_chosen], sources[place] = row, counts [num_experts], which lie with the
// host: how large the experts' products are is for it to know, so it waits for them. Returns how many places there are.
int64_t order_by_expert(int32_t* places, int32_t* sources, int64_t* counts, const int32_t* kept, int64_t rows,
                        int64_t num_chosen, int64_t num_experts, const device::Stream& stream);

// y[r] = Σ_j gates[r][j]·x[places[r][j]] in the order of the choices, rounded once; without gates the plain sum. A row
// all of whose choices were dropped is zero. With `accumulate` it is added to y.
struct CombineShape {
  int64_t rows = 0, num_chosen = 0, dim = 0;
};
void combine_forward(void* y, const void* x, const void* gates, const int32_t* places, bool accumulate,
                     const CombineShape& shape, DType dtype, const device::Stream& stream);
// dx[place] = gates[r][j]·dy[r] and dgates[r][j] = dy[r]·x[place] (0 where dropped).
void combine_backward(void* dx, void* dgates, const void* dy, const void* x, const void* gates, const int32_t* places,
                      const CombineShape& shape, DType dtype, const device::Stream& stream);

namespace ref {
void combine_forward(void* y, const void* x, const void* gates, const int32_t* places, bool accumulate,
                     const CombineShape& shape, DType dtype);
void combine_backward(void* dx, void* dgates, const void* dy, const void* x, const void* gates, const int32_t* places,
                      const CombineShape& shape, DType dtype);
}  // namespace ref

namespace cuda {
decltype(kernel::route_forward) route_forward;
decltype(kernel::route_backward) route_backward;
decltype(kernel::route_losses) route_losses;
decltype(kernel::count_choices) count_choices;
decltype(kernel::pick_choices) pick_choices;
decltype(kernel::put_choices) put_choices;
decltype(kernel::drop_overflow) drop_overflow;
decltype(kernel::order_by_expert) order_by_expert;
decltype(kernel::combine_forward) combine_forward;
decltype(kernel::combine_backward) combine_backward;
}  // namespace cuda

}  // namespace esp::kernel
