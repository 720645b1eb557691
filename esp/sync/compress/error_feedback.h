// Error feedback: keeps the residual (the compression error) of a vector and corrects later vectors with it. A Feedback
// replaces this rank's vector (a gradient, or a gradient times the step size) by the mean over the ranks. The result is
// bit-identical on every rank.
//
//   none            mean C(g_i); compressed a second time with two_phase. Unbiased compressors only
//   ef              e_i += g_i; sends C(e_i), keeps the residual. MEM-SGD (Stich et al. 2018), EF-SGD (Karimireddy et
//                   al. 2019): the input is γ·g_i, the result is the step, and Σ steps + mean e_i = Σ γ·mean g_i
//   doublesqueeze   as ef, and the sum is compressed with a second error E (Tang et al. 2019)
//   ef21            sends C(g_i − h_i), h_i += C(…), H += mean C(…), result H = mean h_i (Richtárik et al. 2021)
//   neolithic:R     doublesqueeze, with every compression applied R times to the residual (Huang et al. 2022)
//
// With `scattered`, each rank gets only its chunk of the sum (the first phase of two_phase). The feedbacks none, ef and
// ef21 support this.
//
// All calls block and come from one thread. The objects of the setup are not owned. A checkpoint must contain the state
// of each feedback.
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
  std::optional<double> factor;             // factor of the sum; nullopt: 1/N, the mean
  std::optional<AggregationMethod> method;  // nullopt: the method with the fewest bytes
  bool scattered = false;                   // `out` is this rank's chunk
};

class Feedback {
 public:
  virtual ~Feedback() = default;
  // replaces g by the mean over the ranks; `out` and `g` must be different memory
  virtual void exchange(void* out, const void* g) = 0;
  // The state kept between steps, by name; writable, so that a resume can restore it. It contains the number of
  // exchanges, which selects the random numbers.
  virtual std::vector<ExtraState> state() = 0;
};

// Parses a spec such as "ef" or "neolithic:2". For an unknown name the UsageError lists the known names. For a method
// that the feedback does not support it gives the reason.
std::unique_ptr<Feedback> make_feedback(std::string_view spec, const FeedbackSetup& setup);

struct FeedbackRow {
  std::string_view name, options, help;
  bool two_phase, plain;  // two_phase: the feedback supports that method. plain: the feedback has no state.
};
std::span<const FeedbackRow> feedbacks();
const FeedbackRow& find_feedback(std::string_view spec);
int64_t rounds_of(std::string_view spec);  // number of compressions of each vector: R of neolithic:R, otherwise 1

// Says why this compressor diverges in theory with this feedback; empty if it converges.
std::string divergence_reason(const Compressor& compressor, std::string_view feedback, int64_t count);

}  // namespace esp::sync
