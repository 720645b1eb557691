#include "esp/sync/compress/error_feedback.h"

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/kernel/difference.h"
#include "esp/kernel/elementwise.h"
#include "esp/sync/compress/spec_arguments.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

constexpr FeedbackRow kFeedbacks[] = {
    {"none", "", "no error feedback; for unbiased compressors", true, true},
    {"ef", "", "adds the residual to the next gradient (MEM-SGD, EF-SGD)", false, false},
    {"doublesqueeze", "", "error feedback of gradients and of their sum", true, false},
    {"ef21", "", "sends the difference between the gradient and a running estimate", false, false},
    {"neolithic", "[:ROUNDS]", "doublesqueeze; compresses the residual again in ROUNDS [2] rounds", true, false},
};

// Common base of the feedbacks: aggregation method, factor and event count.
class RankFeedback : public Feedback {
 public:
  RankFeedback(const FeedbackSetup& setup, AggregationMethod method)
      : setup_(setup.sum),
        ranks_(make_aggregation(method, setup.sum)),
        method_(method),
        factor_(setup.factor.value_or(1.0 / size())) {}
  std::vector<ExtraState> state() override { return {{"events", Tensor::borrow(&events_, {1}, DType::f64), true}}; }

 protected:
  int size() const { return setup_.ranks ? setup_.ranks->size() : 1; }
  const device::Stream& stream() const { return setup_.context.stream; }
  int64_t share() const { return static_cast<int64_t>(ranks_->share().count); }
  uint64_t event() { return static_cast<uint64_t>(events_++); }
  // Checkpoint entry for a tensor as large as the result of `collect`. It is shared if every rank holds the whole
  // result; with two_phase it is this rank's chunk.
  ExtraState of_sum(std::string name, const Tensor& values) const {
    if (method_ != AggregationMethod::two_phase) return {std::move(name), values, true};
    return {std::move(name), values, false, static_cast<int64_t>(ranks_->share().offset), setup_.count};
  }
  std::vector<ExtraState> with_events(std::vector<ExtraState> own) {
    for (ExtraState& one : RankFeedback::state()) own.push_back(std::move(one));
    return own;
  }
  Tensor zeros(int64_t count) const {
    return tensor::zeros(setup_.context, {count}, setup_.dtype, device::MemoryCategory::buffer);
  }
  void scale(void* x, int64_t count) const { kernel::scale(x, factor_, count, setup_.dtype, stream()); }
  void add(const Tensor& y, const void* x) const { kernel::add_to(y.data(), x, y.count(), setup_.dtype, stream()); }

  const AggregationSetup setup_;
  const std::unique_ptr<Aggregation> ranks_;
  const AggregationMethod method_;

 private:
  const double factor_;
  double events_ = 0;  // event count; f64 because checkpoints do not support integers
};

class NoFeedback final : public RankFeedback {
 public:
  NoFeedback(const FeedbackSetup& setup, AggregationMethod method) : RankFeedback(setup, method) {
    if (method == AggregationMethod::two_phase && !setup.scattered) sum_ = zeros(share());
  }
  void exchange(void* out, const void* g) override {
    void* sum = sum_.defined() ? sum_.data() : out;
    ranks_->collect(sum, WriteMode::overwrite, g, nullptr, WriteMode::overwrite, event());
    scale(sum, share());
    if (sum_.defined()) ranks_->spread(out, WriteMode::overwrite, sum, nullptr, WriteMode::overwrite, event());
  }

 private:
  Tensor sum_;
};

class ErrorFeedback final : public RankFeedback {
 public:
  ErrorFeedback(const FeedbackSetup& setup, AggregationMethod method)
      : RankFeedback(setup, method), error_(zeros(setup_.count)) {}
  void exchange(void* out, const void* g) override {
    add(error_, g);
    ranks_->collect(out, WriteMode::overwrite, error_.data(), error_.data(), WriteMode::subtract, event());
    scale(out, share());
  }
  std::vector<ExtraState> state() override { return with_events({{"error", error_}}); }

 private:
  const Tensor error_;
};

// DoubleSqueeze is neolithic with one round.
class Neolithic final : public RankFeedback {
 public:
  Neolithic(const FeedbackSetup& setup, AggregationMethod method, int64_t rounds)
      : RankFeedback(setup, method),
        rounds_(rounds),
        error_(zeros(setup_.count)),
        sum_error_(zeros(share())),
        sum_(zeros(share())) {}
  void exchange(void* out, const void* g) override {
    add(error_, g);
    for (int64_t r = 0; r < rounds_; ++r)
      ranks_->collect(sum_.data(), r ? WriteMode::add : WriteMode::overwrite, error_.data(), error_.data(),
                      WriteMode::subtract, event());
    scale(sum_.data(), share());
    add(sum_error_, sum_.data());
    for (int64_t r = 0; r < rounds_; ++r)
      ranks_->spread(out, r ? WriteMode::add : WriteMode::overwrite, sum_error_.data(), sum_error_.data(),
                     WriteMode::subtract, event());
  }
  std::vector<ExtraState> state() override { return with_events({{"error", error_}, of_sum("sum_error", sum_error_)}); }

 private:
  const int64_t rounds_;
  // error_: this rank's residual; sum_error_: the residual of its chunk of the sum; sum_: that chunk during the
  // exchange
  const Tensor error_, sum_error_, sum_;
};

class Ef21 final : public RankFeedback {
 public:
  Ef21(const FeedbackSetup& setup, AggregationMethod method)
      : RankFeedback(setup, method),
        own_(zeros(setup_.count)),
        mean_(zeros(share())),
        change_(zeros(setup_.count)),
        sum_(zeros(share())) {}
  void exchange(void* out, const void* g) override {
    kernel::subtract(change_.data(), g, own_.data(), setup_.count, setup_.dtype, stream());
    ranks_->collect(sum_.data(), WriteMode::overwrite, change_.data(), own_.data(), WriteMode::add, event());
    scale(sum_.data(), share());
    add(mean_, sum_.data());
    kernel::write_values(out, WriteMode::overwrite, mean_.data(), share(), setup_.dtype, stream());
  }
  std::vector<ExtraState> state() override { return with_events({{"estimate", own_}, of_sum("mean_estimate", mean_)}); }

 private:
  const Tensor own_, mean_, change_, sum_;
};

}  // namespace

std::span<const FeedbackRow> feedbacks() {
  return kFeedbacks;
}

const FeedbackRow& find_feedback(std::string_view spec) {
  return find_row("feedback", kFeedbacks, spec.substr(0, spec.find(':')), {"onebit_adam"});
}

int64_t rounds_of(std::string_view spec) {
  const FeedbackRow& row = find_feedback(spec);
  SpecArguments arguments(row.name, spec.substr(row.name.size()), row.options);
  const int64_t rounds = row.name == "neolithic" ? arguments.integer("rounds", 2, 1, 1000) : 1;
  arguments.finish();
  return rounds;
}

std::unique_ptr<Feedback> make_feedback(std::string_view spec, const FeedbackSetup& setup) {
  const FeedbackRow& row = find_feedback(spec);
  const int64_t rounds = rounds_of(spec);
  const AggregationSetup& sum = setup.sum;
  sum.compressor->check(sum.count);
  if (setup.scattered && row.two_phase && !row.plain)
    throw UsageError(fmt::format(
        "feedback {}: got a reduce-scatter, which sends no sums; this feedback compresses sums. Use ef, ef21 or none.",
        row.name));
  const AggregationMethod method = setup.scattered ? AggregationMethod::two_phase
                                   : setup.method  ? *setup.method
                                                   : cheapest_method(*sum.compressor, sum.count, sum.dtype,
                                                                    sum.ranks ? sum.ranks->size() : 1, {row.two_phase});
  if (method == AggregationMethod::two_phase && !row.two_phase && !setup.scattered)
    throw UsageError(
        fmt::format("feedback {}: has no error feedback for the second compression of two_phase. Use gather or sum, or "
                    "feedback doublesqueeze.",
                    row.name));
  if (row.name == "none") return std::make_unique<NoFeedback>(setup, method);
  if (row.name == "ef") return std::make_unique<ErrorFeedback>(setup, method);
  if (row.name == "ef21") return std::make_unique<Ef21>(setup, method);
  return std::make_unique<Neolithic>(setup, method, rounds);
}

std::string divergence_reason(const Compressor& compressor, std::string_view feedback, int64_t count) {
  const auto [omega, delta] = compressor.guarantee(count);
  if (find_feedback(feedback).plain) {
    if (!omega && delta && *delta < 0.9)
      return fmt::format("a biased compressor (delta {:.3g}) without error feedback may diverge. Use feedback ef",
                         *delta);
  } else if (!delta && omega && *omega >= 1) {
    return fmt::format(
        "error feedback needs a contractive compressor; this one is unbiased with omega {:.3g}, so its residual would "
        "grow. Use feedback none, or randomk's unscaled",
        *omega);
  }
  return {};
}

}  // namespace esp::sync
