#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/espalier/bench_comm.h"
#include "apps/espalier/lab_frames.h"
#include "apps/espalier/text_table.h"
#include "bench/peers/pattern.h"
#include "esp/base/error.h"

namespace esp::app {
namespace {

using testing::ElementsAre;

TEST(BenchSizes, AreParsedLikeSizesOfNcclTests) {
  EXPECT_EQ(parse_size("1024"), 1024u);
  EXPECT_EQ(parse_size("64K"), size_t{64} << 10);
  EXPECT_EQ(parse_size("1.5M"), size_t{3} << 19);
  EXPECT_EQ(parse_size("2GiB"), size_t{2} << 30);
  for (const char* bad : {"", "K", "1Q", "-1", "1KK", "x", "1e99"}) EXPECT_THROW(parse_size(bad), UsageError) << bad;
}

TEST(BenchSizes, GrowByFactorOrByFixedNumberOfBytes) {
  CommBenchOptions bench;
  bench.min_bytes = "1K", bench.max_bytes = "8K", bench.step_factor = 2;
  EXPECT_THAT(sweep(bench), ElementsAre(1024, 2048, 4096, 8192));
  bench.step_factor = 0, bench.step_bytes = "3K";
  EXPECT_THAT(sweep(bench), ElementsAre(1024, 4096, 7168));
  bench.max_bytes = "";
  EXPECT_THAT(sweep(bench), ElementsAre(1024));
  bench.max_bytes = "1G", bench.step_bytes = "1";
  EXPECT_THROW(sweep(bench), UsageError);
}

TEST(BenchStatistics, ComputesMedianAndPercentile) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  std::vector<double> hundred;
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_DOUBLE_EQ(percentile(hundred, 0.99), 99);
  EXPECT_DOUBLE_EQ(percentile({7}, 0.99), 7);
}

TEST(BusFactor, MatchesNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor("all_reduce", 4), 1.5);
  for (const char* op : {"all_gather", "reduce_scatter", "all_to_all"}) EXPECT_DOUBLE_EQ(bus_factor(op, 4), 0.75);
  for (const char* op : {"broadcast", "reduce", "sendrecv"}) EXPECT_DOUBLE_EQ(bus_factor(op, 4), 1);
}

// The reference output sums over all ranks. The checker must accept it and must count every damaged element.
TEST(BenchPattern, CountsEveryWrongElement) {
  const int size = 3;
  const size_t chunk = 100, count = 300;
  for (const char* reduce : {"sum", "prod", "min", "max", "avg"}) {
    std::vector<std::vector<float>> in(size, std::vector<float>(count));
    for (int rank = 0; rank < size; ++rank)
      bench::Pattern{"all_reduce", "f32", reduce, size, rank, 0, count, chunk}.fill(
          reinterpret_cast<std::byte*>(in[static_cast<size_t>(rank)].data()), count);
    std::vector<float> out(count);
    for (size_t i = 0; i < count; ++i) {
      std::string how = reduce;
      float a = in[0][i], b = in[1][i], c = in[2][i];
      out[i] = how == "prod"  ? a * b * c
               : how == "min" ? std::min({a, b, c})
               : how == "max" ? std::max({a, b, c})
                              : a + b + c;
      if (how == "avg") out[i] /= 3;
    }
    bench::Pattern pattern{"all_reduce", "f32", reduce, size, 1, 0, count, chunk};
    EXPECT_EQ(pattern.count_wrong(reinterpret_cast<std::byte*>(out.data()), count), 0u) << reduce;
    out[0] += 1, out[137] += 0.5f, out[299] = NAN;
    EXPECT_EQ(pattern.count_wrong(reinterpret_cast<std::byte*>(out.data()), count), 3u) << reduce;
  }
}

TEST(BenchPattern, DetectsSwappedBlocks) {
  const int size = 4;
  const size_t chunk = 64, count = 256;
  std::vector<int32_t> out(count);
  for (int from = 0; from < size; ++from) {
    std::vector<int32_t> block(chunk);
    bench::Pattern{"all_gather", "i32", "sum", size, from, 0, count, chunk}.fill(
        reinterpret_cast<std::byte*>(block.data()), chunk);
    std::copy(block.begin(), block.end(), out.begin() + from * static_cast<int>(chunk));
  }
  bench::Pattern pattern{"all_gather", "i32", "sum", size, 2, 0, count, chunk};
  EXPECT_EQ(pattern.count_wrong(reinterpret_cast<std::byte*>(out.data()), count), 0u);
  std::swap_ranges(out.begin(), out.begin() + chunk, out.begin() + chunk);
  EXPECT_GT(pattern.count_wrong(reinterpret_cast<std::byte*>(out.data()), count), 0u);
}

TEST(RingFrames, ExecutedRingAllReduceMatchesExpectedFrames) {
  for (int size : {2, 4, 5}) EXPECT_EQ(difference(run_ring_frames(size), comm::ring_frames(size)), "");
  std::vector<comm::RingFrame> damaged = comm::ring_frames(4);
  damaged[2].cells[1][0] = "b0";
  EXPECT_EQ(difference(comm::ring_frames(4), damaged), "frame 3: worker 1 chunk 0 holds a0+b0, expected b0");
}

TEST(TextTable, AlignsColumnsByCodePoints) {
  EXPECT_EQ(text_line({"µs", "1×"}, 4), "  µs  1×\n");
  EXPECT_EQ(markdown_table({"a", "b"}, {{"1", "2"}}), "| a | b |\n|---:|---:|\n| 1 | 2 |\n");
}

}  // namespace
}  // namespace esp::app
