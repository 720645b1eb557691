#include "esp/sync/compress/strategy_compression.h"

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/compress/power_sgd.h"

namespace esp::sync {
namespace {

std::vector<MatrixPart> matrices_in(const nn::ParameterList& parameters, int64_t begin, int64_t end) {
  std::vector<MatrixPart> parts;
  for (const auto& unit : parameters.units())
    for (const nn::Parameter* p : unit.parameters) {
      const int64_t first = unit.first + p->offset;
      if (p->shape.rank() == 2 && first >= begin && first + p->count() <= end)
        parts.push_back({first - begin, p->shape.dim(0), p->shape.dim(1)});
    }
  return parts;
}

}  // namespace

StrategyCompression::StrategyCompression(const Setup& setup)
    : setup_(setup),
      compressor_(power_sgd_rank(setup.options.compress) > 0 ? nullptr : make_compressor(setup.options.compress)) {
  check_compression(setup.options);
}

uint64_t StrategyCompression::seed(size_t index) const {
  return setup_.options.seed + index * 0x9e3779b97f4a7c15u;
}

void StrategyCompression::check_pair(int64_t count) {
  const Options& o = setup_.options;
  const std::string reason = divergence_reason(*compressor_, o.feedback, count);
  if (reason.empty()) return;
  const std::string message =
      fmt::format("sync.compress = \"{}\" with sync.feedback = \"{}\": {}", o.compress, o.feedback, reason);
  if (!o.force) throw UsageError(message);
  if (!std::exchange(warned_, true)) notes_.push_back("warning: " + message + " (used anyway: sync.force = true)");
}

AggregationSetup StrategyCompression::sum_of(const Vector& v, comm::Communicator* ranks,
                                             const tensor::Context& context) {
  check_pair(v.end - v.begin);
  AggregationSetup sum;
  sum.ranks = ranks;
  sum.context = context;
  sum.compressor = compressor_.get();
  sum.count = v.end - v.begin;
  sum.dtype = v.dtype;
  sum.seed = seed(v.index);
  sum.ordered = setup_.options.deterministic;
  return sum;
}

std::unique_ptr<Feedback> StrategyCompression::summed(const Vector& v, comm::Communicator* ranks,
                                                      const tensor::Context& context) {
  const Options& o = setup_.options;
  if (compressor_) return make_feedback(o.feedback, {sum_of(v, ranks, context), v.factor, {}});
  if (v.dtype != DType::f32)
    throw UsageError(
        "sync.compress = \"powersgd\": got fp64 gradients; expected fp32 or 16 bits. Set train.precision to another "
        "type.");
  PowerSgdSetup power;
  power.ranks = ranks;
  power.context = context;
  power.count = v.end - v.begin;
  power.parts = matrices_in(*setup_.parameters, v.begin, v.end);
  power.rank = power_sgd_rank(o.compress);
  power.seed = seed(v.index);
  power.factor = v.factor;
  power.ordered = o.deterministic;
  return make_power_sgd(power);
}

std::unique_ptr<Feedback> StrategyCompression::scattered(const Vector& v, comm::Communicator* ranks,
                                                         const tensor::Context& context) {
  return make_feedback(setup_.options.feedback, {sum_of(v, ranks, context), v.factor, {}, true});
}

std::unique_ptr<OneDirectionalCompression> StrategyCompression::one_directional(const Vector& v,
                                                                                const tensor::Context& context,
                                                                                bool sends) {
  check_pair(v.end - v.begin);
  OneDirectionalSetup setup;
  setup.compressor = compressor_.get();
  setup.feedback = setup_.options.feedback;
  setup.count = v.end - v.begin;
  setup.dtype = v.dtype;
  setup.seed = seed(v.index);
  setup.context = context;
  setup.sends = sends;
  return std::make_unique<OneDirectionalCompression>(setup);
}

void add_numbered(std::vector<ExtraState>& all, std::string_view prefix, size_t index, std::vector<ExtraState> of) {
  for (ExtraState& one : of) {
    one.name = fmt::format("{}.{}.{}", prefix, index, one.name);
    all.push_back(std::move(one));
  }
}

std::vector<ExtraState> extra_state_of(std::span<const std::unique_ptr<Feedback>> exchanges) {
  std::vector<ExtraState> all;
  for (size_t i = 0; i < exchanges.size(); ++i) add_numbered(all, "feedback", i, exchanges[i]->state());
  return all;
}

}  // namespace esp::sync
