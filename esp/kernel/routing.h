// Mixture-of-experts routing: expert selection, gates, and the permutation of rows by expert.
//
// A row's choices are its `num_chosen` most probable experts, most probable first; ties go to the lower number. Scores,
// probabilities and gates are in the accumulation type (f32, or f64). A place is a row of the buffer ordered by expert,
// then token; -1 is a dropped choice. Outputs are overwritten unless stated. Results do not depend on the number of
// threads.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct RouteShape {
  int64_t rows = 0, num_experts = 0, num_chosen = 0;
  bool normalise = false;  // gates are normalised over the chosen experts, else the probabilities
};

// probabilities[r] = softmax(logits[r]), lse[r] = log Σ exp, choices[r] and gates[r] of num_chosen each.
void route_forward(void* probabilities, void* lse, int32_t* choices, void* gates, const void* logits,
                   const RouteShape& shape, DType dtype, const device::Stream& stream);

// Contribution of the router's auxiliary losses to the gradient: Σ_e slopes[group of r][e]·p_e and z·lse².
struct RouteLosses {
  const void* slopes = nullptr;  // [groups, num_experts]; null: none
  int64_t rows_per_group = 1;
  const int32_t* numbers = nullptr;  // row numbers, if not 0, 1, 2, …; number / rows_per_group is the group
  double z = 0;
};
// dlogits, from the gradient of the gates (null: zero) and of the losses.
void route_backward(void* dlogits, const void* dgates, const void* probabilities, const void* lse,
                    const int32_t* choices, const RouteLosses& losses, const RouteShape& shape, DType dtype,
                    const device::Stream& stream);

// slopes[g][e] = scale·E·f_e, with f_e the share of e in the loads of group g, for `groups` groups; if `sums` (host
// memory) is given, also the sums over rows of E·Σ_e f_e·p_e and lse². `losses` names the groups.
struct RouteSums {
  double balance = 0, z = 0;
};
void route_losses(void* slopes, RouteSums* sums, const void* probabilities, const void* lse, const int64_t* loads,
                  int64_t groups, double scale, const RouteLosses& losses, const RouteShape& shape, DType dtype,
                  const device::Stream& stream);

// counts[g][e]: number of choices of e in group g, of `per_group` choices. Negative choices are not counted.
void count_choices(int64_t* counts, const int32_t* choices, int64_t groups, int64_t per_group, int64_t num_experts,
                   const device::Stream& stream);

// Gathers numbered rows of `width`: here[r] = all[numbers[r]]; put_choices scatters.
void pick_choices(int32_t* here, const int32_t* all, const int32_t* numbers, int64_t rows, int64_t width,
                  const device::Stream& stream);
void put_choices(int32_t* all, const int32_t* here, const int32_t* numbers, int64_t rows, int64_t width,
                 const device::Stream& stream);

// kept = choices, with −1 for overflow: an expert takes `capacity` rows of each group of `tokens`: first choices of all
// tokens in order, then second choices, and so on.
void drop_overflow(int32_t* kept, const int32_t* choices, int64_t groups, int64_t tokens, int64_t num_chosen,
                   int64_t num_experts, int64_t capacity, const device::Stream& stream);

// Places by (expert, row): places [rows, num_chosen], sources[place] = row, counts [num_experts] on the host, which
// sizes the experts' GEMMs, so the call waits for them. Returns the number of places.
int64_t order_by_expert(int32_t* places, int32_t* sources, int64_t* counts, const int32_t* kept, int64_t rows,
                        int64_t num_chosen, int64_t num_experts, const device::Stream& stream);

// y[r] = Σ_j gates[r][j]·x[places[r][j]] in the order of the choices, rounded once; without gates the plain sum. A row
// with only dropped choices is zero. With `accumulate` it is added to y.
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
