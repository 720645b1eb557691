#include "esp/sync/compress/feedback.h"

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/kernel/difference.h"
#include "esp/kernel/elementwise.h"
#include "esp/sync/compress/arguments.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

constexpr FeedbackRow kFeedbacks[] = {
    {"none", "", "what is left out is lost; for unbiased compressors", true, true},
    {"ef", "", "what is left out is sent later (MEM-SGD, EF-SGD)", false, false},
    {"doublesqueeze", "", "errors on the way up and on the way down", true, false},
    {"ef21", "", "differences to a running estimate travel", false, false},
    {"neolithic", "[:ROUNDS]", "doublesqueeze with each compression in rounds [2] on the rest", true, false},
};

// What they share: the way, the factor, the count of events.
class OverRanks : public Feedback {
 public:
  OverRanks(const FeedbackSetup& setup, Way way)
      : setup_(setup.sum),
        ranks_(make_aggregation(way, setup.sum)),
        way_(way),
        factor_(setup.factor.value_or(1.0 / size())) {}
  std::vector<Remembered> state() override { return {{"events", Tensor::over(&events_, {1}, DType::f64), true}}; }

 protected:
  int size() const { return setup_.ranks ? setup_.ranks->size() : 1; }
  const device::Stream& stream() const { return setup_.context.stream; }
  int64_t share() const { return static_cast<int64_t>(ranks_->share().count); }
  uint64_t event() { return static_cast<uint64_t>(events_++); }
  // What every rank has alike after `collect`, or its chunk of.
  Remembered of_sum(std::string name, const Tensor& values) const {
    if (way_ != Way::two_phase) return {std::move(name), values, true};
    return {std::move(name), values, false, static_cast<int64_t>(ranks_->share().offset), setup_.count};
  }
  std::vector<Remembered> with_events(std::vector<Remembered> own) {
    for (Remembered& one : OverRanks::state()) own.push_back(std::move(one));
    return own;
  }
  Tensor zeros(int64_t count) const {
    return tensor::zeros(setup_.context, {count}, setup_.dtype, device::MemoryCategory::buffer);
  }
  void scale(void* x, int64_t count) const { kernel::scale(x, factor_, count, setup_.dtype, stream()); }
  void add(const Tensor& y, const void* x) const { kernel::add_to(y.data(), x, y.count(), setup_.dtype, stream()); }

  const AggregationSetup setup_;
  const std::unique_ptr<Aggregation> ranks_;
  const Way way_;

 private:
  const double factor_;
  double events_ = 0;  // a whole number, of a type that checkpoints have
};

class None final : public OverRanks {
 public:
  None(const FeedbackSetup& setup, Way way) : OverRanks(setup, way) {
    if (way == Way::two_phase && !setup.scattered) sum_ = zeros(share());
  }
  void exchange(void* out, const void* g) override {
    void* sum = sum_.defined() ? sum_.data() : out;
    ranks_->collect(sum, Into::overwrite, g, nullptr, Into::overwrite, event());
    scale(sum, share());
    if (sum_.defined()) ranks_->spread(out, Into::overwrite, sum, nullptr, Into::overwrite, event());
  }

 private:
  Tensor sum_;
};

class ErrorFeedback final : public OverRanks {
 public:
  ErrorFeedback(const FeedbackSetup& setup, Way way) : OverRanks(setup, way), error_(zeros(setup_.count)) {}
  void exchange(void* out, const void* g) override {
    add(error_, g);
    ranks_->collect(out, Into::overwrite, error_.data(), error_.data(), Into::subtract, event());
    scale(out, share());
  }
  std::vector<Remembered> state() override { return with_events({{"error", error_}}); }

 private:
  const Tensor error_;
};

// DoubleSqueeze is one round of it.
class Neolithic final : public OverRanks {
 public:
  Neolithic(const FeedbackSetup& setup, Way way, int64_t rounds)
      : OverRanks(setup, way),
        rounds_(rounds),
        error_(zeros(setup_.count)),
        sum_error_(zeros(share())),
        sum_(zeros(share())) {}
  void exchange(void* out, const void* g) override {
    add(error_, g);
    for (int64_t r = 0; r < rounds_; ++r)
      ranks_->collect(sum_.data(), r ? Into::add : Into::overwrite, error_.data(), error_.data(), Into::subtract,
                      event());
    scale(sum_.data(), share());
    add(sum_error_, sum_.data());
    for (int64_t r = 0; r < rounds_; ++r)
      ranks_->spread(out, r ? Into::add : Into::overwrite, sum_error_.data(), sum_error_.data(), Into::subtract,
                     event());
  }
  std::vector<Remembered> state() override { return with_events({{"error", error_}, of_sum("sum_error", sum_error_)}); }

 private:
  const int64_t rounds_;
  const Tensor error_, sum_error_, sum_;  // of this rank; of its share; the share's sum while it is made
};

class Ef21 final : public OverRanks {
 public:
  Ef21(const FeedbackSetup& setup, Way way)
      : OverRanks(setup, way),
        own_(zeros(setup_.count)),
        mean_(zeros(share())),
        change_(zeros(setup_.count)),
        sum_(zeros(share())) {}
  void exchange(void* out, const void* g) override {
    kernel::subtract(change_.data(), g, own_.data(), setup_.count, setup_.dtype, stream());
    ranks_->collect(sum_.data(), Into::overwrite, change_.data(), own_.data(), Into::add, event());
    scale(sum_.data(), share());
    add(mean_, sum_.data());
    kernel::put_values(out, Into::overwrite, mean_.data(), share(), setup_.dtype, stream());
  }
  std::vector<Remembered> state() override { return with_events({{"estimate", own_}, of_sum("mean_estimate", mean_)}); }

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
  Arguments arguments(row.name, spec.substr(row.name.size()), row.options);
  const int64_t rounds = row.name == "neolithic" ? arguments.whole("rounds", 2, 1, 1000) : 1;
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
        "{} compresses sums on their way down, and here each rank keeps the sum of its chunk: take ef, ef21 or none",
        row.name));
  const Way way = setup.scattered ? Way::two_phase
                  : setup.way     ? *setup.way
                              : cheapest_way(*sum.compressor, sum.count, sum.dtype, sum.ranks ? sum.ranks->size() : 1,
                                             {row.two_phase});
  if (way == Way::two_phase && !row.two_phase && !setup.scattered)
    throw UsageError(fmt::format(
        "{} keeps no error of the second compression of a two-phase way: take gather, sum or doublesqueeze", row.name));
  if (row.name == "none") return std::make_unique<None>(setup, way);
  if (row.name == "ef") return std::make_unique<ErrorFeedback>(setup, way);
  if (row.name == "ef21") return std::make_unique<Ef21>(setup, way);
  return std::make_unique<Neolithic>(setup, way, rounds);
}

std::string objection(const Compressor& compressor, std::string_view feedback, int64_t count) {
  const auto [omega, delta] = compressor.guarantee(count);
  if (find_feedback(feedback).plain) {
    if (!omega && delta && *delta < 0.9)
      return fmt::format("a biased compressor (delta {:.3g}) without feedback may diverge: take feedback ef", *delta);
  } else if (!delta && omega && *omega >= 1) {
    return fmt::format(
        "feedback needs a contractive compressor, and this one is unbiased with omega {:.3g}: its errors would grow; "
        "take feedback none, or randomk's unscaled",
        *omega);
  }
  return {};
}

}  // namespace esp::sync
