#include "esp/dash/series.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "esp/obs/temporary_folder.h"

namespace esp::dash {
namespace {

using nlohmann::json;

std::string line(int step, double loss, const std::string& more = "") {
  return "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(loss) + more + "}";
}

TEST(Series, KeepsPeaksWhenDownsampled) {
  Series series;
  for (int i = 1; i <= 100000; ++i) ASSERT_TRUE(series.add_line(line(i, i == 77777 ? 50.0 : 1.0 + i % 2)));
  const json downsample = json::parse(series.downsample("loss", -1e300, 1e300, 500));
  ASSERT_LE(downsample["x"].size(), 500u);
  double most = 0, least = 1e9;
  for (const double y : downsample["max"]) most = std::max(most, y);
  for (const double y : downsample["min"]) least = std::min(least, y);
  EXPECT_EQ(most, 50.0);
  EXPECT_EQ(least, 1.0);
  EXPECT_NEAR(downsample["mean"][0].get<double>(), 1.5, 0.01);
  // A narrow range returns every value instead of a summary.
  const json near = json::parse(series.downsample("loss", 77775, 77779, 500));
  EXPECT_EQ(near["mean"], json({2.0, 1.0, 50.0, 1.0, 2.0}));
  EXPECT_FALSE(near.contains("min"));
}

TEST(Series, RejectsInvalidSteps) {
  Series series;
  EXPECT_TRUE(series.add_line(R"({"step":1,"loss":1})"));
  for (const char* step : {"1e20", "100000000000000000000", "-1", "1e300", "\"2\""})
    EXPECT_FALSE(series.add_line(fmt::format(R"({{"step":{},"loss":1}})", step))) << step;
  EXPECT_EQ(series.last_step(), 1);
}

TEST(Series, SkipsLinesWithoutValue) {
  Series series;
  series.add_line(line(1, 3));
  series.add_line(line(2, 2, ",\"val_loss\":2.5"));
  series.add_line("{\"step\":3,\"loss\":null}");
  series.add_line(line(4, 1));
  EXPECT_EQ(json::parse(series.downsample("val_loss", 0, 10, 10))["x"], json({2}));
  EXPECT_EQ(json::parse(series.downsample("loss", 0, 10, 10))["x"], json({1, 2, 4}));
  EXPECT_EQ(json::parse(series.downsample("nothing", 0, 10, 10))["x"], json::array());
  EXPECT_TRUE(std::isnan(series.last("val_loss")));
}

TEST(Series, DiscardsLaterLinesWhenStepIsRepeated) {
  Series series;
  for (int i = 1; i <= 10; ++i) series.add_line(line(i, i));
  series.add_line(line(6, 60));
  EXPECT_EQ(series.last_step(), 6);
  EXPECT_EQ(json::parse(series.downsample("loss", 0, 100, 100))["mean"], json({1, 2, 3, 4, 5, 60}));
}

TEST(Series, FindsGapsAndSlowestRanks) {
  Series series;
  double now = 1000;
  for (int i = 1; i <= 30; ++i) {
    now += i == 20 ? 60 : 0.1;
    series.add_line(line(i, 1,
                         ",\"step_ms\":100,\"wall_s\":" + std::to_string(now) + ",\"slowest_rank\":" +
                             std::to_string(i % 3 == 0) + ",\"waited_ms\":" + std::to_string(i % 3 == 0 ? 6 : 2)));
  }
  ASSERT_EQ(series.gaps().size(), 1u);
  EXPECT_EQ(series.gaps()[0].step, 20);
  EXPECT_NEAR(series.gaps()[0].seconds, 59.9, 0.2);
  const auto slowest_ranks = series.slowest_ranks();
  ASSERT_EQ(slowest_ranks.size(), 2u);
  EXPECT_EQ(slowest_ranks[0].steps, 20);
  EXPECT_EQ(slowest_ranks[1].steps, 10);
  EXPECT_EQ(slowest_ranks[1].waited_ms, 6);
}

TEST(SeriesFile, ReadsIncrementally) {
  const obs::TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  SeriesFile file(path);
  EXPECT_FALSE(file.follow());
  std::ofstream(path) << line(1, 3) << "\n" << line(2, 2) << "\n{\"step\":3,\"lo";
  EXPECT_TRUE(file.follow());
  EXPECT_EQ(file.series().last_step(), 2);  // the third line is incomplete
  const uint64_t before = file.offset();
  EXPECT_FALSE(file.follow());
  std::ofstream(path, std::ios::app) << "ss\":1}\nno line\n" << line(4, 1) << "\n";
  EXPECT_TRUE(file.follow());
  EXPECT_GT(file.offset(), before);
  EXPECT_EQ(file.series().last_step(), 4);
  EXPECT_EQ(file.num_damaged(), 1);
  // A shorter file means that a new run wrote it.
  std::ofstream(path, std::ios::trunc) << line(1, 9) << "\n";
  EXPECT_TRUE(file.follow());
  EXPECT_EQ(file.series().size(), 1u);
}

TEST(SeriesFile, ReadsOnlyLastLines) {
  const obs::TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  EXPECT_EQ(last_lines(path).size(), 0u);
  std::ofstream file(path);
  for (int i = 1; i <= 5000; ++i) file << line(i, 1, ",\"wall_s\":" + std::to_string(2 * i)) << "\n";
  file << "{\"step\":5001";
  file.close();
  const Series last = last_lines(path);
  EXPECT_EQ(last.last_step(), 5000);
  EXPECT_LT(last.size(), 1000u);
  EXPECT_GT(last.size(), 10u);
  EXPECT_EQ(last.last_gap_s(), 2);
}

TEST(SeriesFile, RejectsSymbolicLinks) {
  const obs::TemporaryFolder folder;
  std::ofstream(folder.path() + "/secret") << line(1, 3) << "\n";
  std::filesystem::create_symlink(folder.path() + "/secret", folder.path() + "/metrics.jsonl");
  SeriesFile file(folder.path() + "/metrics.jsonl");
  EXPECT_FALSE(file.follow());
  EXPECT_EQ(file.series().size(), 0u);
}

}  // namespace
}  // namespace esp::dash
