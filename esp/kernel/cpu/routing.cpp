// MoE routing kernels for the CPU. They are plain loops over rows, because there are few choices and few experts.
#include "esp/kernel/routing.h"
#include "esp/kernel/cuda_dispatch.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "esp/kernel/floating.h"

namespace esp::kernel {
namespace {

template <typename F>
void with_accumulator(DType dtype, F&& f) {
  ESP_CHECK(dtype == DType::f32 || dtype == DType::f64, "routing: got dtype {}; expected f32 or f64", name_of(dtype));
  if (dtype == DType::f64) return f(std::type_identity<double>{});
  f(std::type_identity<float>{});
}

// Selects the num_chosen largest probabilities. A NaN never compares as larger, so the choices are always different.
template <typename A>
void choose(int32_t* choices, const A* p, int64_t num_experts, int64_t num_chosen) {
  for (int64_t j = 0; j < num_chosen; ++j) {
    int32_t best = -1;
    for (int32_t e = 0; e < num_experts; ++e) {
      if (std::find(choices, choices + j, e) != choices + j) continue;
      if (best < 0 || p[e] > p[best]) best = e;
    }
    choices[j] = best;
  }
}

template <typename A>
A chosen_sum(const A* p, const int32_t* choices, int64_t num_chosen) {
  A sum = 0;
  for (int64_t j = 0; j < num_chosen; ++j) sum += p[choices[j]];
  return sum;
}

template <typename A>
void route_row(A* p, A& lse, int32_t* choices, A* gates, const A* z, const RouteShape& shape) {
  const int64_t E = shape.num_experts;
  const A top = *std::max_element(z, z + E);
  A sum = 0;
  for (int64_t e = 0; e < E; ++e) sum += p[e] = std::exp(z[e] - top);
  for (int64_t e = 0; e < E; ++e) p[e] /= sum;
  lse = top + std::log(sum);
  choose(choices, p, E, shape.num_chosen);
  const A whole = shape.normalise ? chosen_sum(p, choices, shape.num_chosen) : A{1};
  for (int64_t j = 0; j < shape.num_chosen; ++j) gates[j] = p[choices[j]] / whole;
}

// Gradient of the logits: dz = p∘(dp − Σ p·dp), plus the gradient of the router z-loss. dp is the sum of the gradients
// from the gates and from the load-balancing loss (`slopes`). A normalised gate is p/s, where s is the sum of the
// chosen probabilities.
template <typename A>
void route_row_back(A* dz, const A* dgates, const A* p, A lse, const int32_t* choices, const A* slopes, double z,
                    const RouteShape& shape) {
  const int64_t E = shape.num_experts;
  for (int64_t e = 0; e < E; ++e) dz[e] = slopes ? slopes[e] : A{0};
  if (dgates) {
    const A whole = shape.normalise ? chosen_sum(p, choices, shape.num_chosen) : A{1};
    A mean = 0;
    if (shape.normalise)
      for (int64_t j = 0; j < shape.num_chosen; ++j) mean += dgates[j] * p[choices[j]] / whole;
    for (int64_t j = 0; j < shape.num_chosen; ++j) dz[choices[j]] += (dgates[j] - mean) / whole;
  }
  A mean = 0;
  for (int64_t e = 0; e < E; ++e) mean += p[e] * dz[e];
  const A of_lse = static_cast<A>(2 * z) * lse;
  for (int64_t e = 0; e < E; ++e) dz[e] = p[e] * (dz[e] - mean + of_lse);
}

}  // namespace

void route_forward(void* probabilities, void* lse, int32_t* choices, void* gates, const void* logits,
                   const RouteShape& shape, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::route_forward(probabilities, lse, choices, gates, logits, shape, dtype, stream);
  const int64_t E = shape.num_experts, k = shape.num_chosen;
  ESP_CHECK(k >= 1 && k <= E, "routing: got {} experts per token; must be from 1 to {} (the number of experts)", k, E);
  with_accumulator(dtype, [&]<typename A>(std::type_identity<A>) {
    device::parallel_for(stream, shape.rows, row_grain(16 * E), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        route_row(static_cast<A*>(probabilities) + r * E, static_cast<A*>(lse)[r], choices + r * k,
                  static_cast<A*>(gates) + r * k, static_cast<const A*>(logits) + r * E, shape);
    });
  });
}

void route_backward(void* dlogits, const void* dgates, const void* probabilities, const void* lse,
                    const int32_t* choices, const RouteLosses& losses, const RouteShape& shape, DType dtype,
                    const device::Stream& stream) {
  if (is_cuda(stream))
    return cuda::route_backward(dlogits, dgates, probabilities, lse, choices, losses, shape, dtype, stream);
  const int64_t E = shape.num_experts, k = shape.num_chosen;
  with_accumulator(dtype, [&]<typename A>(std::type_identity<A>) {
    device::parallel_for(stream, shape.rows, row_grain(16 * E), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t group = (losses.numbers ? losses.numbers[r] : r) / losses.rows_per_group;
        const A* slopes = losses.slopes ? static_cast<const A*>(losses.slopes) + group * E : nullptr;
        route_row_back(static_cast<A*>(dlogits) + r * E, dgates ? static_cast<const A*>(dgates) + r * k : nullptr,
                       static_cast<const A*>(probabilities) + r * E, static_cast<const A*>(lse)[r], choices + r * k,
                       slopes, losses.z, shape);
      }
    });
  });
}

void route_losses(void* slopes, RouteSums* sums, const void* probabilities, const void* lse, const int64_t* loads,
                  int64_t groups, double scale, const RouteLosses& losses, const RouteShape& shape, DType dtype,
                  const device::Stream& stream) {
  if (is_cuda(stream))
    return cuda::route_losses(slopes, sums, probabilities, lse, loads, groups, scale, losses, shape, dtype, stream);
  const int64_t E = shape.num_experts;
  // The loads of a group add up to the group's number of choices, so E·f_e is the load of expert e times this factor.
  const double by = static_cast<double>(E) / static_cast<double>(losses.rows_per_group * shape.num_chosen);
  with_accumulator(dtype, [&]<typename A>(std::type_identity<A>) {
    for (int64_t i = 0; i < groups * E; ++i)
      static_cast<A*>(slopes)[i] = static_cast<A>(scale * by * static_cast<double>(loads[i]));
    if (!sums) return;
    *sums = {};
    for (int64_t r = 0; r < shape.rows; ++r) {
      const int64_t* load = loads + (losses.numbers ? losses.numbers[r] : r) / losses.rows_per_group * E;
      const A* p = static_cast<const A*>(probabilities) + r * E;
      double here = 0;
      for (int64_t e = 0; e < E; ++e) here += static_cast<double>(load[e]) * static_cast<double>(p[e]);
      const double log = static_cast<double>(static_cast<const A*>(lse)[r]);
      sums->balance += here * by;
      sums->z += log * log;
    }
  });
}

void count_choices(int64_t* counts, const int32_t* choices, int64_t groups, int64_t per_group, int64_t num_experts,
                   const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::count_choices(counts, choices, groups, per_group, num_experts, stream);
  std::fill(counts, counts + groups * num_experts, 0);
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t i = 0; i < per_group; ++i)
      if (const int32_t e = choices[g * per_group + i]; e >= 0) ++counts[g * num_experts + e];
}

void gather_choices(int32_t* here, const int32_t* all, const int32_t* numbers, int64_t rows, int64_t width,
                    const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::gather_choices(here, all, numbers, rows, width, stream);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(all + numbers[r] * width, width, here + r * width);
}

void scatter_choices(int32_t* all, const int32_t* here, const int32_t* numbers, int64_t rows, int64_t width,
                     const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::scatter_choices(all, here, numbers, rows, width, stream);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(here + r * width, width, all + numbers[r] * width);
}

void drop_overflow(int32_t* kept, const int32_t* choices, int64_t groups, int64_t tokens, int64_t num_chosen,
                   int64_t num_experts, int64_t capacity, const device::Stream& stream) {
  if (is_cuda(stream))
    return cuda::drop_overflow(kept, choices, groups, tokens, num_chosen, num_experts, capacity, stream);
  static thread_local std::vector<int64_t> taken;  // grows to the largest call and is reused
  for (int64_t g = 0; g < groups; ++g) {
    taken.assign(static_cast<size_t>(num_experts), 0);
    for (int64_t j = 0; j < num_chosen; ++j)
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t at = (g * tokens + t) * num_chosen + j;
        int64_t& here = taken[static_cast<size_t>(choices[at])];
        kept[at] = here < capacity ? choices[at] : -1;
        here += kept[at] >= 0;
      }
  }
}

int64_t order_by_expert(int32_t* places, int32_t* sources, int64_t* counts, const int32_t* kept, int64_t rows,
                        int64_t num_chosen, int64_t num_experts, const device::Stream& stream) {
  if (is_cuda(stream))
    return cuda::order_by_expert(places, sources, counts, kept, rows, num_chosen, num_experts, stream);
  static thread_local std::vector<int64_t> next;  // grows to the largest call and is reused
  next.assign(static_cast<size_t>(num_experts), 0);
  count_choices(counts, kept, 1, rows * num_chosen, num_experts, stream);
  int64_t total = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    next[static_cast<size_t>(e)] = total;
    total += counts[e];
  }
  for (int64_t i = 0; i < rows * num_chosen; ++i) {
    places[i] = kept[i] < 0 ? -1 : static_cast<int32_t>(next[static_cast<size_t>(kept[i])]++);
    if (places[i] >= 0) sources[places[i]] = static_cast<int32_t>(i / num_chosen);
  }
  return total;
}

}  // namespace esp::kernel
