// What becomes of that which a compressor leaves out. A feedback turns this rank's vector (a gradient, or a gradient
// times the step size) into one that takes the place of the mean over the ranks; the same bits on every rank.
//
//   none            mean C(g_i); a second compression on a two-phase way. Unbiased compressors only
//   ef              e_i += g_i; sends C(e_i), keeps the rest. MEM-SGD (Stich et al. 2018), EF-SGD (Karimireddy et al.
//                   2019): give it γ·g_i and step by the result. Σ steps + mean e_i = Σ γ·mean g_i
//   doublesqueeze  the same, and the sum is compressed with an error E of its own (Tang et al. 2019)
//   ef21            sends C(g_i − h_i), h_i += C(…), H += mean C(…), result H = mean h_i (Richtárik et al. 2021)
//   neolithic:R     doublesqueeze with every compression R times on what is left (Huang et al. 2022)
//
// Scattered, each rank gets its chunk of the sum only (the first phase of a two-phase way): none, ef and ef21.
//
// Blocking; one thread. What the setup lends outlives it. Its state is what a checkpoint must hold.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "esp/sync/compress/aggregation.h"
#include "esp/sync/remembered.h"

namespace esp::sync {

struct FeedbackSetup {
  AggregationSetup sum;
  std::optional<double> factor;  // of the sum; none: 1/N, the mean
  std::optional<Way> way;        // none: the fewest bytes
  bool scattered = false;        // `out` is this rank's chunk
};

class Feedback {
 public:
  virtual ~Feedback() = default;
  virtual void exchange(void* out, const void* g) = 0;  // out may not be g
  // Remembered from step to step, by name, the count of exchanges (what random numbers come next) included; writable,
  // for restoring.
  virtual std::vector<Remembered> state() = 0;
};

// "ef", "neolithic:2". UsageError lists the known ones, or says why the setup's way is none for it.
std::unique_ptr<Feedback> make_feedback(std::string_view spec, const FeedbackSetup& setup);

struct FeedbackRow {
  std::string_view name, options, help;
  bool two_phase, plain;  // may go a two-phase way; keeps nothing
};
std::span<const FeedbackRow> feedbacks();
const FeedbackRow& find_feedback(std::string_view spec);
int64_t rounds_of(std::string_view spec);  // compressions of one vector: neolithic's, 1 of others

// Why theory says that the pair does not converge; empty: it does.
std::string objection(const Compressor& compressor, std::string_view feedback, int64_t count);

}  // namespace esp::sync
