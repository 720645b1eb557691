// Mixture-of-experts (MoE) routing: selection of experts, gates, auxiliary losses, and ordering of rows by expert.
//
// The choices of a row are its `num_chosen` most probable experts, most probable first. If two are equal, the lower
// expert number comes first. Scores, probabilities and gates are in the accumulation type (f32, or f64). `places` are
// positions in the buffer of rows ordered by expert, then token; −1 marks a dropped choice. Outputs are overwritten
// unless a comment says otherwise. Results do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct RouteShape {
  int64_t rows = 0, num_experts = 0, num_chosen = 0;
  bool normalise = false;  // true: the gates of a row are divided by their sum; false: gates are the probabilities
};

// probabilities[r] = softmax(logits[r]) and lse[r] = log Σ exp(logits[r]). choices[r] and gates[r] have num_chosen
// elements.
void route_forward(void* probabilities, void* lse, int32_t* choices, void* gates, const void* logits,
                   const RouteShape& shape, DType dtype, const device::Stream& stream);

// The auxiliary losses of a router. For every row r they are the load-balancing loss Σ_e slopes[group of r][e]·p_e and
// the router z-loss z·lse². route_backward adds their gradients.
struct RouteLosses {
  const void* slopes = nullptr;  // [groups, num_experts]; null: no load-balancing loss
  int64_t rows_per_group = 1;
  // row numbers; null means 0, 1, 2, … The group of a row is its number / rows_per_group.
  const int32_t* numbers = nullptr;
  double z = 0;
};
// Computes dlogits from dgates (null means zero) and from the auxiliary losses.
void route_backward(void* dlogits, const void* dgates, const void* probabilities, const void* lse,
                    const int32_t* choices, const RouteLosses& losses, const RouteShape& shape, DType dtype,
                    const device::Stream& stream);

// Computes slopes[g][e] = scale·E·f_e for `groups` groups. E is the number of experts, and f_e is the share of expert e
// in the load of group g. If `sums` (host memory) is given, it receives two sums over the rows: `balance` is the sum of
// E·Σ_e f_e·p_e, and `z` is the sum of lse². `losses` defines the group of each row.
struct RouteSums {
  double balance = 0, z = 0;
};
void route_losses(void* slopes, RouteSums* sums, const void* probabilities, const void* lse, const int64_t* loads,
                  int64_t groups, double scale, const RouteLosses& losses, const RouteShape& shape, DType dtype,
                  const device::Stream& stream);

// counts[g][e] = number of choices in group g that chose expert e. A group has `per_group` choices. Negative choices
// are not counted.
void count_choices(int64_t* counts, const int32_t* choices, int64_t groups, int64_t per_group, int64_t num_experts,
                   const device::Stream& stream);

// gather_choices: here[r] = all[numbers[r]], for rows of `width` elements. scatter_choices is the inverse:
// all[numbers[r]] = here[r].
void gather_choices(int32_t* here, const int32_t* all, const int32_t* numbers, int64_t rows, int64_t width,
                    const device::Stream& stream);
void scatter_choices(int32_t* all, const int32_t* here, const int32_t* numbers, int64_t rows, int64_t width,
                     const device::Stream& stream);

// Expert capacity: copies choices to kept and replaces those that exceed the capacity by −1. In each group of `tokens`
// tokens, an expert accepts at most `capacity` choices: the first choices of all tokens in order, then their second
// choices, and so on.
void drop_overflow(int32_t* kept, const int32_t* choices, int64_t groups, int64_t tokens, int64_t num_chosen,
                   int64_t num_experts, int64_t capacity, const device::Stream& stream);

// Orders the choices by (expert, row): places [rows, num_chosen], sources[place] = row, counts [num_experts]. Returns
// the number of kept choices. `counts` is in host memory, because the host needs it for the sizes of the experts'
// GEMMs. The call therefore waits for the GPU.
int64_t order_by_expert(int32_t* places, int32_t* sources, int64_t* counts, const int32_t* kept, int64_t rows,
                        int64_t num_chosen, int64_t num_experts, const device::Stream& stream);

// y[r] = Σ_j gates[r][j]·x[places[r][j]], in the order of the choices, rounded once. If `gates` is null, every gate is
// 1. If all choices of a row are dropped, the sum is zero. If `accumulate` is set, the result is added to y.
struct CombineShape {
  int64_t rows = 0, num_chosen = 0, dim = 0;
};
void combine_forward(void* y, const void* x, const void* gates, const int32_t* places, bool accumulate,
                     const CombineShape& shape, DType dtype, const device::Stream& stream);
// dx[place] = gates[r][j]·dy[r] and dgates[r][j] = dy[r]·x[place], with place = places[r][j]. dgates is 0 for a dropped
// choice.
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
decltype(kernel::gather_choices) gather_choices;
decltype(kernel::scatter_choices) scatter_choices;
decltype(kernel::drop_overflow) drop_overflow;
decltype(kernel::order_by_expert) order_by_expert;
decltype(kernel::combine_forward) combine_forward;
decltype(kernel::combine_backward) combine_backward;
}  // namespace cuda

}  // namespace esp::kernel
