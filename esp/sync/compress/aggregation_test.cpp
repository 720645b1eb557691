#include "esp/sync/compress/aggregation.h"

#include <mutex>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/compress/testing.h"

namespace esp::sync {
namespace {

constexpr uint64_t kSeed = 21, kEvent = 5;

AggregationSetup setup_for(comm::Communicator& comm, RankResources& place, const Compressor& compressor, int64_t n) {
  AggregationSetup setup;
  setup.ranks = &comm;
  setup.context = place.context;
  setup.compressor = &compressor;
  setup.count = n;
  setup.seed = kSeed;
  setup.ordered = true;
  return setup;
}

Values<float> vector_of(int rank, int64_t n) {
  return normal_values(n, static_cast<uint64_t>(100 + rank));
}

class AggregationMethods : public testing::TestWithParam<std::tuple<std::string, int>> {};

// Runs one collect and one spread with every method. Checks the sum of the decoded values in rank order, this rank's
// chunk of it, and the bytes sent.
TEST_P(AggregationMethods, SumDecodedValuesAndSendThePredictedBytes) {
  const std::string& spec = std::get<0>(GetParam());
  const int size = std::get<1>(GetParam());
  const auto compressor = make_compressor(spec);
  for (int64_t n : {37, 1000})
    for (AggregationMethod method : {AggregationMethod::sum, AggregationMethod::gather, AggregationMethod::two_phase}) {
      if (!is_supported(method, *compressor, n, DType::f32, size)) continue;
      const std::string where = fmt::format("{} {} {} ranks, {}", spec, name_of(method), size, n);
      std::vector<Values<float>> result(static_cast<size_t>(size));
      std::mutex mutex;
      with_ranks_of(size, [&](comm::Communicator& comm) {
        RankResources place;
        auto aggregation = make_aggregation(method, setup_for(comm, place, *compressor, n));
        const Values<float> x = vector_of(comm.rank(), n);
        const comm::Chunk share = aggregation->share();
        Values<float> sum(share.count), own(x), whole(x.size()), share_own(share.count);
        aggregation->collect(sum.data(), WriteMode::overwrite, x.data(), own.data(), WriteMode::subtract, kEvent);
        aggregation->spread(whole.data(), WriteMode::overwrite, sum.data(), share_own.data(), WriteMode::overwrite,
                            kEvent + 1);
        std::lock_guard lock(mutex);
        result[static_cast<size_t>(comm.rank())] = whole;

        // Computes the decoded values C(v) of one rank, as a reference.
        auto by_hand = [&](int rank, const Values<float>& v, uint64_t event) {
          const RandomKey draw{kSeed, event, static_cast<uint32_t>(rank)};
          if (method != AggregationMethod::two_phase) return compressed(*compressor, v, draw);
          Values<float> all;
          for (int k = 0; k < size; ++k) {
            const comm::Chunk chunk = comm::chunk_of(v.size(), size, k);
            const auto at = v.begin() + static_cast<std::ptrdiff_t>(chunk.offset);
            for (float part : compressed(*compressor, Values<float>(at, at + static_cast<std::ptrdiff_t>(chunk.count)),
                                         draw.for_chunk(k)))
              all.push_back(part);
          }
          return all;
        };
        const Values<float> sent = by_hand(comm.rank(), x, kEvent);
        for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(own[i], x[i] - sent[i]) << where;
        Values<float> want = by_hand(0, vector_of(0, n), kEvent);
        for (int rank = 1; rank < size; ++rank) {
          const Values<float> theirs = by_hand(rank, vector_of(rank, n), kEvent);
          for (size_t i = 0; i < want.size(); ++i) want[i] += theirs[i];
        }
        for (size_t i = 0; i < share.count; ++i) {
          const float expected = want[share.offset + i];
          // the encoded values are added in 16 bits
          if (method == AggregationMethod::sum && compressor->summable(DType::f32) != DType::f32) {
            ASSERT_NEAR(sum[i], expected, 0.02 * size) << where;
          } else {
            ASSERT_EQ(sum[i], expected) << where;
          }
          ASSERT_EQ(share_own[i], whole[share.offset + i]) << where;
        }
        const uint64_t sent_bytes = bytes_sent_by(comm);
        const uint64_t due = bytes_sent(method, *compressor, n, DType::f32, size, comm.rank());
        if (compressor->fixed_length()) {
          ASSERT_EQ(sent_bytes, due) << where;
        } else {
          const size_t length = code_of(*compressor, x, {kSeed, kEvent, static_cast<uint32_t>(comm.rank())}).size();
          ASSERT_EQ(sent_bytes, static_cast<uint64_t>(size - 1) * (8 + length)) << where;
          ASSERT_LE(sent_bytes, due) << where;
        }
      });
      for (const auto& other : result) ASSERT_TRUE(same_bits(other, result[0])) << where;
    }
}

INSTANTIATE_TEST_SUITE_P(Every, AggregationMethods,
                         testing::Combine(testing::Values("identity", "fp16", "bf16", "int8:64", "int8:64:stochastic",
                                                          "int4:16", "random:-4,-1,0,1,4", "qsgd:16:64", "natural",
                                                          "sign", "onebit", "topk:0.1", "topk:3", "randomk:0.1",
                                                          "threshold:1"),
                                          testing::Values(1, 2, 3, 4)));

TEST(CheapestMethod, SendsTheFewestBytes) {
  auto method = [](const char* spec, int64_t n, int size, bool two_phase = true) {
    return name_of(cheapest_method(*make_compressor(spec), n, DType::f32, size, {two_phase}));
  };
  EXPECT_EQ(method("randomk:0.01", 100000, 8), "sum");
  EXPECT_EQ(method("bf16", 100000, 8), "sum");
  EXPECT_EQ(method("int8", 100000, 8), "two_phase");
  EXPECT_EQ(method("int8", 100000, 8, false), "gather");
  // With two ranks, `gather` and `two_phase` send the same number of bytes, but `gather` quantises one time fewer.
  EXPECT_EQ(method("int8", 100000, 2), "gather");
  EXPECT_EQ(method("threshold:1", 100000, 8), "gather");
  // two_phase would send one element of each of the eight chunks: eight times the bytes
  EXPECT_EQ(method("topk:1", 100000, 8), "gather");
  // two_phase is not supported: its chunks of 125 values have fewer than 200 elements
  EXPECT_EQ(method("topk:200", 1000, 8), "gather");
}

TEST(CheapestMethod, TopKSendsFewerBytesWhenKIsBelowCountOverRanks) {
  const auto full = make_compressor("identity");
  for (int size : {2, 4, 8}) {
    const size_t whole = bytes_sent(AggregationMethod::sum, *full, 80000, DType::f32, size, 0);
    EXPECT_EQ(whole, static_cast<size_t>(2 * (size - 1)) * 80000 / static_cast<size_t>(size) * 4);
    // gather of top-K (8K bytes per rank) sends less than an fp32 all-reduce exactly when K < n/N: (N−1)·8K <
    // 8(N−1)/N·n.
    const auto at = make_compressor(fmt::format("topk:{}", 80000 / size));
    const auto below = make_compressor(fmt::format("topk:{}", 80000 / size - 1));
    EXPECT_EQ(bytes_sent(AggregationMethod::gather, *at, 80000, DType::f32, size, 0), whole);
    EXPECT_LT(bytes_sent(AggregationMethod::gather, *below, 80000, DType::f32, size, 0), whole);
  }
}

TEST(Aggregation, RejectsUnsupportedMethods) {
  RankResources place;
  const auto top = make_compressor("topk:5");
  AggregationSetup setup;
  setup.context = place.context;
  setup.compressor = top.get();
  setup.count = 100;
  EXPECT_THROW(make_aggregation(AggregationMethod::sum, setup), UsageError);
  setup.count = 4;
  EXPECT_THROW(make_aggregation(AggregationMethod::gather, setup), UsageError);
  EXPECT_THROW(parse_aggregation_method("ring"), UsageError);
}

}  // namespace
}  // namespace esp::sync
