#include "esp/sync/compress/one_bit_momentum.h"

#include "esp/sync/compress/reference_feedback.h"

namespace esp::sync {
namespace {

TEST(OneBitMomentum, MatchesOneProcessReferenceAndSendsOneBitPerValue) {
  constexpr int kRanks = 4, kSteps = 10;
  constexpr int64_t kCount = 32000;
  const float beta = 0.9f;
  auto gradient = [](int rank, int step) { return normal_values(kCount, static_cast<uint64_t>(100 * step + rank)); };
  const auto sign = make_compressor("sign");
  ReferenceFeedback<float> all(*sign, AggregationMethod::two_phase, kRanks, kCount, 3, 0.25);
  Values<float> want(kCount);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Values<float>> momenta;
    for (int rank = 0; rank < kRanks; ++rank) {
      Values<float> m = gradient(rank, step);
      for (size_t i = 0; i < m.size(); ++i) m[i] = want[i] * beta + m[i] * static_cast<float>(1 - 0.9);
      momenta.push_back(m);
    }
    want = all.neolithic(momenta, 1);
    want[7] = 0;
  }
  with_ranks_of(kRanks, [&](comm::Communicator& comm) {
    RankResources place;
    AggregationSetup setup;
    setup.ranks = &comm;
    setup.context = place.context;
    setup.count = kCount;
    setup.seed = 3;
    OneBitMomentum exchange(setup);
    Values<float> m(kCount), mask(kCount, 1.0f);
    mask[7] = 0;
    for (int step = 0; step < kSteps; ++step)
      exchange.exchange(m.data(), gradient(comm.rank(), step).data(), 0.9, mask.data());
    EXPECT_EQ(m, want);
    const auto identity = make_compressor("identity");
    const double full =
        kSteps * static_cast<double>(bytes_sent(AggregationMethod::sum, *identity, kCount, DType::f32, kRanks, 0));
    EXPECT_NEAR(full / static_cast<double>(bytes_sent_by(comm)), 32, 0.2);
  });
}

}  // namespace
}  // namespace esp::sync
