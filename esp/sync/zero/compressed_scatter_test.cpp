#include "esp/sync/zero/compressed_scatter.h"

#include "esp/base/error.h"
#include "esp/sync/compress/reference_feedback.h"
#include "esp/sync/testing.h"

namespace esp::sync {
namespace {

constexpr int kRanks = 4, kSteps = 4;
const std::vector<std::vector<int64_t>> kUnits = {{700, 3, 110}, {500}, {64, 32, 130, 20}};
constexpr int64_t kCount = 1559;

Options options_of(const std::string& method, const std::string& compress, const std::string& feedback) {
  Options o;
  o.method = method;
  o.compress = compress;
  o.feedback = feedback;
  o.first_bucket_mb = 128 * 4.0 / (1 << 20);
  o.bucket_mb = 512 * 4.0 / (1 << 20);
  o.seed = 5;
  o.deterministic = true;
  return o;
}

float gradient(int rank, int step, int64_t element) {
  return static_cast<float>(
      random_unit(static_cast<uint64_t>(rank), static_cast<uint64_t>(step), static_cast<uint64_t>(element)) - 0.5);
}

void expect_scattered(const std::string& method, const std::string& compress, const std::string& feedback) {
  const Options options = options_of(method, compress, feedback);
  const auto compressor = make_compressor(compress);
  std::vector<Values<float>> want(kSteps, Values<float>(kCount));
  std::vector<uint64_t> bytes(kRanks);
  StrategyFixture shape(kUnits, nullptr, options_of("allreduce", "none", "none"), DType::f32);
  const auto buckets = make_gradient_buckets(shape.list, static_cast<int64_t>(options.first_bucket_mb * (1 << 20)),
                                             static_cast<int64_t>(options.bucket_mb * (1 << 20)), DType::f32);
  ASSERT_GT(buckets.size(), 2u);
  for (size_t b = 0; b < buckets.size(); ++b) {
    const GradientBucket& bucket = buckets[b];
    ReferenceFeedback<float> all(*compressor, AggregationMethod::two_phase, kRanks, static_cast<size_t>(bucket.count()),
                                 options.seed + b * 0x9e3779b97f4a7c15u, 1);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<Values<float>> g(kRanks);
      for (int rank = 0; rank < kRanks; ++rank)
        for (int64_t i = bucket.begin; i < bucket.end; ++i)
          g[static_cast<size_t>(rank)].push_back(gradient(rank, step, i));
      const Values<float> out = all.scattered(feedback, g);
      std::copy(out.begin(), out.end(), want[static_cast<size_t>(step)].begin() + bucket.begin);
    }
    for (int rank = 0; rank < kRanks; ++rank)
      for (int k = 0; k < kRanks; ++k) {
        const auto chunk = comm::chunk_of(static_cast<size_t>(bucket.count()), kRanks, k).count;
        if (k != rank)
          bytes[static_cast<size_t>(rank)] +=
              kSteps * compressor->encoded_bytes(static_cast<int64_t>(chunk), DType::f32);
      }
  }
  with_ranks(kRanks, [&](comm::Communicator* comm) {
    StrategyFixture made(kUnits, comm, options, DType::f32);
    for (int step = 0; step < kSteps; ++step) {
      made.strategy->begin_step();
      for (const bool last : {false, true}) {  // two micro-batches, but only the last one is exchanged
        made.strategy->begin_pass({true, last});
        for (nn::Parameter& p : made.list.all()) p.weight.fetch_value();
        made.strategy->begin_backward();
        auto& all = made.list.all();
        for (auto p = all.rbegin(); p != all.rend(); ++p)
          made.deliver<float>(*p,
                              [&](int64_t i) { return last ? gradient(comm->rank(), step, made.first(*p) + i) : 0; });
        made.strategy->end_pass();
      }
      made.strategy->finish();
      for (const optim::OptimizerShard& one : made.strategy->optimizer_shards()) {
        const int64_t first = made.list.units()[static_cast<size_t>(one.range.unit)].first + one.range.begin;
        for (int64_t i = 0; i < one.grads.count(); ++i)
          ASSERT_EQ(one.grads.as<float>()[i], want[static_cast<size_t>(step)][static_cast<size_t>(first + i)])
              << method << ' ' << compress << ' ' << feedback << " step " << step << " element " << first + i;
      }
      made.strategy->after_step();
    }
    uint64_t sent = 0;
    for (const NamedGroup& group : made.strategy->groups())
      if (group.name == "compressed") sent += bytes_sent_by(*group.comm);
    EXPECT_EQ(sent, bytes[static_cast<size_t>(comm->rank())]) << method << ' ' << compress << ' ' << feedback;
  });
}

TEST(CompressedScatter, MatchesOneProcessReferenceBitForBitAndSendsTheExpectedBytes) {
  for (const char* method : {"zero1", "zero2"}) {
    expect_scattered(method, "topk:0.1", "ef");
    expect_scattered(method, "sign", "ef21");
    expect_scattered(method, "int8:64", "none");
    expect_scattered(method, "qsgd:16:64", "none");
    expect_scattered(method, "randomk:0.1", "none");
    expect_scattered(method, "fp16", "ef");
  }
}

TEST(CompressedScatter, RejectsCompressedSums) {
  for (const char* feedback : {"doublesqueeze", "neolithic:2"})
    EXPECT_THROW(check_compression(options_of("zero1", "sign", feedback)), UsageError);
  EXPECT_THROW(check_compression(options_of("zero2", "powersgd:2", "none")), UsageError);
  EXPECT_THROW(check_compression(options_of("zero3", "int8", "none")), UsageError);
  Options grouped = options_of("zero1", "int8", "none");
  grouped.group = 2;
  EXPECT_THROW(check_compression(grouped), UsageError);
  Options reduced = options_of("zero2", "int8", "none");
  reduced.accumulate = "reduced";
  EXPECT_THROW(check_compression(reduced), UsageError);
}

}  // namespace
}  // namespace esp::sync
