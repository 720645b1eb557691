// Compressed pushes and sums: real ranks with synthetic gradients, compared with a one-process reference.
#include "esp/sync/ps/ps_compression.h"

#include "esp/base/error.h"
#include "esp/kernel/optimizer_step.h"
#include "esp/sync/compress/reference_feedback.h"
#include "esp/sync/testing.h"

namespace esp::sync {
namespace {

const std::vector<std::vector<int64_t>> kUnits = {{10, 33}, {201}, {7, 1, 90}};
constexpr size_t kCount = 342;
constexpr int kWorkers = 3, kServers = 2, kSteps = 6;
constexpr double kRate = 0.1;

float gradient(int worker, int64_t step, int64_t at, float x) {
  return x - static_cast<float>((worker * 31 + at * 7 + step * 3) % 17);
}

Options options_of(const std::string& compress, const std::string& feedback, const std::string& update,
                   bool dedicated) {
  Options o;
  o.method = "ps";
  o.compress = compress;
  o.feedback = feedback;
  o.seed = 4;
  o.ps.servers = kServers;
  o.ps.server_ranks = dedicated ? "dedicated" : "beside";
  o.ps.update = update;
  o.ps.partition_mb = 50.0 * 4 / (1 << 20);
  return o;
}

struct RankResult {
  Values<float> x;
  uint64_t pushed = 0, pulled = 0;
};

// Trains on one rank; returns the final x of a worker.
RankResult train(comm::Communicator* comm, const Options& options, int steps = kSteps) {
  StrategyFixture made(kUnits, comm, options, DType::f32);
  auto optimizer = made.strategy->make_optimizer({.name = "sgd", .momentum = 0});
  if (!optimizer)
    optimizer = optim::make_optimizer({.name = "sgd", .momentum = 0}, made.list, made.context,
                                      made.strategy->optimizer_shards());
  AsyncWorkers& workers = *made.strategy->async_workers();
  const int rank = comm ? comm->rank() : 0;
  for (int step = 0; step < steps; ++step) {
    made.strategy->begin_step();
    if (!workers.is_server_only()) {
      made.strategy->begin_pass({});
      auto& all = made.list.all();
      for (auto p = all.rbegin(); p != all.rend(); ++p) {
        const auto* x = p->weight.value.as<float>();
        made.deliver<float>(*p, [&](int64_t i) { return gradient(rank, step, made.first(*p) + i, x[i]); });
      }
      made.strategy->end_pass();
    }
    made.strategy->finish();
    made.strategy->sums_of_squares();
    optimizer->step(kRate, 1);
    made.strategy->after_step();
  }
  workers.synchronise();
  RankResult seen;
  if (!workers.is_server_only())
    for (const auto& unit : made.list.units())
      seen.x.insert(seen.x.end(), unit.values.as<float>(), unit.values.as<float>() + unit.count);
  for (const comm::CallStats& row : made.strategy->messages()) {
    if (row.algorithm == "push") seen.pushed = row.bytes_sent;
    if (row.algorithm == "pull") seen.pulled = row.bytes_received;
  }
  return seen;
}

ServerLayout layout_of(const Options& options) {
  StrategyFixture shape(kUnits, nullptr, Options(), DType::f32);
  return make_server_layout(shape.list, kWorkers + (options.ps.server_ranks == "dedicated" ? kServers : 0), options.ps,
                            DType::f32);
}

// Reference, one partition after another. With ef21 the sum is that of the workers' estimates, in worker order.
Values<float> emulate(const Options& options) {
  const auto compressor = make_compressor(options.compress);
  const ServerLayout layout = layout_of(options);
  Values<float> x(kCount);
  std::vector<ReferenceFeedback<float>> parts;
  std::vector<Values<float>> estimates(kWorkers, Values<float>(kCount));
  for (size_t p = 0; p < layout.partitions.size(); ++p)
    parts.emplace_back(*compressor, AggregationMethod::gather, kWorkers,
                       static_cast<size_t>(layout.partitions[p].count()), options.seed + p * 0x9e3779b97f4a7c15u, 1);
  for (int step = 0; step < kSteps; ++step) {
    Values<float> sum(kCount);
    for (size_t p = 0; p < parts.size(); ++p) {
      const auto begin = static_cast<size_t>(layout.partitions[p].begin);
      std::vector<Values<float>> g(kWorkers);
      for (int w = 0; w < kWorkers; ++w)
        for (int64_t i = layout.partitions[p].begin; i < layout.partitions[p].end; ++i)
          g[static_cast<size_t>(w)].push_back(gradient(w, step, i, x[static_cast<size_t>(i)]));
      if (options.feedback != "ef21") {
        const Values<float> out = parts[p].run(options.feedback, g);
        std::copy(out.begin(), out.end(), sum.begin() + static_cast<std::ptrdiff_t>(begin));
        continue;
      }
      for (size_t w = 0; w < g.size(); ++w) {
        for (size_t i = 0; i < g[w].size(); ++i) g[w][i] -= estimates[w][begin + i];
        const Values<float> move =
            compressed(*compressor, g[w],
                       {options.seed + p * 0x9e3779b97f4a7c15u, static_cast<uint64_t>(step), static_cast<uint32_t>(w)});
        for (size_t i = 0; i < move.size(); ++i) {
          float& of = estimates[w][begin + i];
          of += move[i];
          sum[begin + i] = w == 0 ? of : sum[begin + i] + of;
        }
      }
    }
    kernel::SgdStep sgd;
    sgd.lr = kRate;
    kernel::sgd_step({.master = x.data(), .grad = sum.data(), .count = kCount}, sgd, {});
  }
  return x;
}

TEST(PsCompression, MatchesOneProcessReferenceBitForBitAndSendsTheExpectedBytes) {
  struct Case {
    std::string compress, feedback, update;
  };
  for (const Case& it : {Case{"topk:0.2", "ef", "server"},
                         {"topk:0.2", "ef21", "server"},
                         {"int8:16:stochastic", "none", "server"},
                         {"sign", "ef", "worker"},
                         {"sign", "doublesqueeze", "worker"},
                         {"topk:0.2", "neolithic:2", "worker"}})
    for (const bool dedicated : {false, true}) {
      const Options options = options_of(it.compress, it.feedback, it.update, dedicated);
      const Values<float> want = emulate(options);
      const ServerLayout layout = layout_of(options);
      const auto compressor = make_compressor(it.compress);
      uint64_t up = 0, down = 0;
      const bool both_ways = it.feedback == "doublesqueeze" || it.feedback == "neolithic:2";
      for (const Partition& p : layout.partitions) {
        const uint64_t code = compressor->encoded_bytes(p.count(), DType::f32) * (it.feedback == "neolithic:2" ? 2 : 1);
        up += kSteps * code;
        down += kSteps * (both_ways ? code : static_cast<uint64_t>(p.count()) * 4);
      }
      with_ranks(kWorkers + (dedicated ? kServers : 0), [&](comm::Communicator* comm) {
        const RankResult seen = train(comm, options);
        if (comm->rank() >= kWorkers) return;
        EXPECT_TRUE(same_bits(seen.x, want)) << it.compress << ' ' << it.feedback << ' ' << it.update << dedicated;
        if (!dedicated) return;  // messages from a rank to itself are not sent
        EXPECT_EQ(seen.pushed, up) << it.compress << ' ' << it.feedback;
        EXPECT_EQ(seen.pulled, down) << it.compress << ' ' << it.feedback;
      });
    }
}

// With a single worker the order is fixed, so asynchronous steps must equal the one-process reference.
TEST(PsCompression, SupportsAsynchronousSteps) {
  for (const char* feedback : {"ef", "ef21"}) {
    Options options = options_of("topk:0.2", feedback, "server", true);
    options.ps.mode = "async";
    std::vector<Values<float>> seen(3);
    with_ranks(1 + kServers,
               [&](comm::Communicator* comm) { seen[static_cast<size_t>(comm->rank())] = train(comm, options).x; });
    options.ps.mode = "sync";
    Values<float> want;
    with_ranks(1 + kServers, [&](comm::Communicator* comm) {
      const RankResult it = train(comm, options);
      if (comm->rank() == 0) want = it.x;
    });
    EXPECT_TRUE(same_bits(seen[0], want)) << feedback;
  }
}

TEST(PsCompression, RejectsCompressorsThatServersCannotUse) {
  EXPECT_THROW(check_compression(options_of("sign", "doublesqueeze", "server", false)), UsageError);
  EXPECT_THROW(check_compression(options_of("threshold:1", "ef", "server", false)), UsageError);
  EXPECT_THROW(check_compression(options_of("powersgd:2", "none", "server", false)), UsageError);
  Options collective = options_of("sign", "ef", "server", false);
  collective.ps.exchange = "collectives";
  EXPECT_THROW(check_compression(collective), UsageError);
  EXPECT_NO_THROW(check_compression(options_of("sign", "doublesqueeze", "worker", false)));
}

}  // namespace
}  // namespace esp::sync
