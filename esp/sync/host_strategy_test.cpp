// Compares the host adapter with a strategy that works without it: gradient sums, weights and norms must be equal.
#include "esp/sync/host_strategy.h"

#include <gtest/gtest.h>

#include "esp/sync/testing.h"

namespace esp::sync {
namespace {

const std::vector<std::vector<int64_t>> kUnits = {{7, 3, 11}, {5}, {16, 1, 13, 2}, {4, 9}};

struct Case {
  const char* name;
  std::function<void(Options&)> set;
};
const Case kCases[] = {
    {"allreduce", [](Options&) {}},
    {"cycle", [](Options& o) { o.buckets = "cycle"; }},
    {"topk", [](Options& o) { o.compress = "topk:0.3", o.feedback = "ef"; }},
    {"qsgd", [](Options& o) { o.compress = "qsgd:4"; }},
    {"zero1", [](Options& o) { o.method = "zero1"; }},
    {"zero2", [](Options& o) { o.method = "zero2"; }},
    {"zero3", [](Options& o) { o.method = "zero3"; }},
    {"zeropp", [](Options& o) { o.method = "zero3", o.quantise = "qwz,qgz"; }},
    {"servers", [](Options& o) { o.method = "ps"; }},
    {"local", [](Options& o) { o.method = "local", o.tau = 2; }},
};

class HostStrategy : public testing::TestWithParam<Case> {
 protected:
  static Options options() {
    Options options;
    options.first_bucket_mb = 8 * 4.0 / (1 << 20);  // limit of eight elements per bucket
    options.bucket_mb = 16 * 4.0 / (1 << 20);
    options.cycle_ms = 0.2;
    GetParam().set(options);
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Methods, HostStrategy, testing::ValuesIn(kCases),
                         [](const auto& row) { return row.param.name; });

double gradient(int rank, int64_t element, int64_t step, int64_t pass) {
  return static_cast<double>(rank + 1) * static_cast<double>(element % 7 - 3) + static_cast<double>(step - 2 * pass);
}

void fill(StrategyFixture& made) {
  made.strategy->fill([](nn::ParameterList::Unit& unit) {
    for (int64_t i = 0; i < unit.count; ++i)
      unit.values.as<float>()[i] = static_cast<float>((unit.first + i) % 11) * 0.25f;
  });
}

// Plain SGD, because parameter servers can run it too.
struct Descent {
  explicit Descent(StrategyFixture& of) : made(of) {
    optim::OptimizerOptions options;
    options.name = "sgd";
    optimizer = made.strategy->make_optimizer(options);
    if (!optimizer)
      optimizer = optim::make_optimizer(options, made.list, made.context, made.strategy->optimizer_shards());
    if (DivergentReplicas* divergent = made.strategy->divergent_replicas()) divergent->attach(*optimizer);
  }
  void step() {
    made.strategy->finish();
    squares = made.strategy->sums_of_squares();
    optimizer->step(0.01, 1);
    made.strategy->after_step();
  }
  StrategyFixture& made;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::vector<double> squares;
};

std::vector<float> values_seen(nn::ParameterList& list) {
  std::vector<float> all;
  for (nn::Parameter& p : list.all()) {
    const tensor::Tensor& value = p.weight.fetch_value();
    all.insert(all.end(), value.as<float>(), value.as<float>() + value.count());
  }
  return all;
}

TEST_P(HostStrategy, MatchesTheStrategyWithoutTheAdapter) {
  constexpr int64_t kSteps = 5, kPasses = 3;
  for (const int size : {1, 2, 4})
    with_ranks(size, [&](comm::Communicator* comm) {
      auto other_ranks = comm->split(0, comm->rank());
      StrategyFixture plain(kUnits, comm, options(), DType::f32),
          host(kUnits, other_ranks.get(), options(), DType::f32);
      nn::ParameterList device;
      for (const auto& unit : host.list.units()) {
        device.begin_unit(unit.name);
        for (const nn::Parameter* p : unit.parameters) device.add(p->name, p->shape, p->init, p->decay);
      }
      host.strategy = make_host_strategy(std::move(host.strategy), host.list, device, host.context, DType::f32);
      fill(plain);
      fill(host);
      Descent one(plain), other(host);
      for (int64_t step = 0; step < kSteps; ++step) {
        const auto whole = [&](const nn::Parameter& p, int64_t i, int64_t pass) {
          return gradient(comm->rank(), plain.first(p) + i, step, pass);
        };
        plain.strategy->begin_step();
        plain.strategy->begin_pass({true, true});
        const std::vector<float> seen = values_seen(plain.list);
        plain.strategy->begin_backward();
        for (size_t i = plain.list.all().size(); i-- > 0;) {
          nn::Parameter& p = plain.list.all()[i];
          p.weight.fetch_value();
          plain.deliver<float>(p, [&](int64_t e) {
            double sum = 0;
            for (int64_t pass = 0; pass < kPasses; ++pass) sum += whole(p, e, pass);
            return sum;
          });
        }
        plain.strategy->end_pass();

        host.strategy->begin_step();
        for (int64_t pass = 0; pass < kPasses; ++pass) {
          host.strategy->begin_pass({true, pass + 1 == kPasses});
          EXPECT_EQ(values_seen(device), seen) << "step " << step;
          host.strategy->begin_backward();
          // list order, not the order of backward: gradients may complete in any order
          for (nn::Parameter& p : device.all()) host.deliver<float>(p, [&](int64_t e) { return whole(p, e, pass); });
          host.strategy->end_pass();
        }
        one.step();
        other.step();
        EXPECT_EQ(other.squares, one.squares) << "step " << step;
      }
      plain.strategy->begin_step();
      plain.strategy->begin_pass({false, true});
      const std::vector<float> last = values_seen(plain.list);
      plain.strategy->end_pass();
      host.strategy->begin_step();
      host.strategy->begin_pass({false, true});
      EXPECT_EQ(values_seen(device), last);
      host.strategy->end_pass();
    });
}

}  // namespace
}  // namespace esp::sync
