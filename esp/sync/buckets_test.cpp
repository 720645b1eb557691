#include "esp/sync/buckets.h"

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/sync/bucket_queue.h"

namespace esp::sync {
namespace {

nn::ParameterList list_of(const std::vector<std::vector<int64_t>>& units) {
  nn::ParameterList list;
  for (size_t u = 0; u < units.size(); ++u) {
    list.begin_unit("unit" + std::to_string(u));
    for (size_t p = 0; p < units[u].size(); ++p)
      list.add(std::to_string(u) + "." + std::to_string(p), {units[u][p]}, nn::Init::zeros(), false);
  }
  return list;
}

std::vector<int64_t> counts_of(const std::vector<GradientBucket>& buckets) {
  std::vector<int64_t> counts;
  for (const GradientBucket& bucket : buckets) counts.push_back(bucket.count());
  return counts;
}

TEST(Buckets, StartWithTheLastParametersAndASmallBucket) {
  nn::ParameterList list = list_of({{10, 10}, {10, 10, 10}, {10}});
  const auto buckets = make_gradient_buckets(list, 4 * 10, 4 * 30, DType::f32);
  EXPECT_EQ(counts_of(buckets), (std::vector<int64_t>{10, 30, 20}));
  EXPECT_EQ(buckets[0].end, 60);
  EXPECT_EQ(buckets[0].parameters.front()->name, "2.0");
  // A bucket is a range of elements and may span units.
  EXPECT_EQ(buckets[1].parameters.back()->name, "1.0");
  EXPECT_EQ(buckets[2].begin, 0);
}

TEST(Buckets, GiveALargeParameterItsOwnBucket) {
  nn::ParameterList list = list_of({{5, 100, 5}});
  EXPECT_EQ(counts_of(make_gradient_buckets(list, 4 * 10, 4 * 20, DType::f32)), (std::vector<int64_t>{5, 100, 5}));
  EXPECT_EQ(counts_of(make_gradient_buckets(list, 2 * 109, 2 * 109, DType::bf16)), (std::vector<int64_t>{105, 5}));
}

TEST(Buckets, CoverEveryElementOnceForAnySizes) {
  for (const int64_t limit : {1, 7, 16, 40, 1000}) {
    nn::ParameterList list = list_of({{7, 3, 11}, {5}, {1, 1, 13, 2}, {4, 9}});
    const auto buckets = make_gradient_buckets(list, 4 * limit / 2, 4 * limit, DType::f32);
    int64_t end = list.count();
    size_t parameters = 0;
    for (const GradientBucket& bucket : buckets) {
      EXPECT_EQ(bucket.end, end);
      EXPECT_LT(bucket.begin, bucket.end);
      EXPECT_TRUE(bucket.count() <= limit || bucket.parameters.size() == 1u);
      end = bucket.begin;
      parameters += bucket.parameters.size();
    }
    EXPECT_EQ(end, 0);
    EXPECT_EQ(parameters, list.all().size());
  }
}

TEST(Buckets, UnitRangesSplitAtUnitBoundaries) {
  const nn::ParameterList list = list_of({{7, 3}, {5}, {8}});
  EXPECT_EQ(unit_ranges(list, 4, 18), (std::vector<optim::UnitRange>{{0, 4, 10}, {1, 0, 5}, {2, 0, 3}}));
  EXPECT_EQ(unit_ranges(list, 10, 15), (std::vector<optim::UnitRange>{{1, 0, 5}}));
  EXPECT_TRUE(unit_ranges(list, 9, 9).empty());
}

struct QueueFixture {
  nn::ParameterList list = list_of({{1, 1}, {1, 1}});
  std::vector<size_t> launched;
  BucketQueue queue{make_gradient_buckets(list, 1, 1, DType::f32),
                    [this](size_t bucket) { launched.push_back(bucket); }};
  void ready(const char* name) { list.find(name).weight.on_ready(); }
};

TEST(BucketQueue, LaunchesInIndexOrderForAnyCompletionOrder) {
  QueueFixture q;
  q.queue.arm();
  q.ready("0.0");  // the last bucket
  q.ready("1.0");
  EXPECT_TRUE(q.launched.empty());
  q.ready("1.1");
  EXPECT_EQ(q.launched, (std::vector<size_t>{0, 1}));
  q.ready("0.1");
  EXPECT_EQ(q.launched, (std::vector<size_t>{0, 1, 2, 3}));
}

TEST(BucketQueue, LaunchesRemainingBucketsAfterBackward) {
  QueueFixture q;
  q.queue.arm();
  q.ready("1.0");
  std::vector<std::string> untouched;
  q.queue.flush([&](nn::Parameter& p) { untouched.push_back(p.name); });
  EXPECT_EQ(untouched, (std::vector<std::string>{"1.1", "0.1", "0.0"}));
  EXPECT_EQ(q.launched, (std::vector<size_t>{0, 1, 2, 3}));
}

TEST(BucketQueue, IgnoresGradientsUntilArmed) {
  QueueFixture q;
  q.ready("1.1");
  q.queue.flush([](nn::Parameter&) { FAIL(); });
  EXPECT_TRUE(q.launched.empty());
}

TEST(BucketQueue, RejectsAGradientThatCompletesTwice) {
  QueueFixture q;
  q.queue.arm();
  q.ready("0.0");
  EXPECT_THROW(q.ready("0.0"), Error);
}

}  // namespace
}  // namespace esp::sync
