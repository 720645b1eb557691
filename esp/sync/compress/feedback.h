// Error feedback: what happens to the residual of a compression. A feedback replaces this rank's vector (a gradient, or
// a gradient times the step size) by the mean over the ranks; bit-identical on every rank.
//
//   none            mean C(g_i); compressed a second time with two_phase. Unbiased compressors only
//   ef              e_i += g_i; sends C(e_i), keeps the residual. MEM-SGD (Stich et al. 2018), EF-SGD (Karimireddy et
//                   al. 2019): input γ·g_i, step by the result. Σ steps + mean e_i = Σ γ·mean g_i
//   doublesqueeze   as ef, and the sum is compressed with a second error E (Tang et al. 2019)
//   ef21            sends C(g_i − h_i), h_i += C(…), H += mean C(…), result H = mean h_i (Richtárik et al. 2021)
//   neolithic:R     doublesqueeze, with every compression applied R times to the residual (Huang et al. 2022)
//
// Scattered: each rank gets only its chunk of the sum (the first phase of two_phase). For none, ef and ef21.
//
// Blocking; one thread. The setup is borrowed. Checkpoints must contain its state.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "esp/sync/compress/aggregation.h"
#include "esp/sync/extra_state.h"

namespace esp::sync {

struct FeedbackSetup {
  AggregationSetup sum;
  std::optional<double> factor;             // of the sum; none: 1/N, the mean
  std::optional<AggregationMethod> method;  // none: the method with the fewest bytes
  bool scattered = false;                   // `out` is this rank's chunk
};

class Feedback {
 public:
  virtual ~Feedback() = default;
  virtual void exchange(void* out, const void* g) = 0;  // out may not be g
  // State kept between steps, by name, including the count of exchanges (which selects the random numbers); writable,
  // for restoring.
  virtual std::vector<ExtraState> state() = 0;
};

// "ef", "neolithic:2". UsageError lists the known ones, or says why it does not support the setup's method.
std::unique_ptr<Feedback> make_feedback(std::string_view spec, const FeedbackSetup& setup);

struct FeedbackRow {
  std::string_view name, options, help;
  bool two_phase, plain;  // supports two_phase; stateless
};
std::span<const FeedbackRow> feedbacks();
const FeedbackRow& find_feedback(std::string_view spec);
int64_t rounds_of(std::string_view spec);  // compressions of one vector: R of neolithic, 1 of others

// Why the pair diverges by theory; empty: it converges.
std::string divergence_reason(const Compressor& compressor, std::string_view feedback, int64_t count);

}  // namespace esp::sync
