#include "esp/obs/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "esp/base/error.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::obs {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Prometheus, EscapesInvalidCharactersOfALabel) {
  EXPECT_EQ(prometheus_label("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
  EXPECT_EQ(prometheus_label("größe"), "größe");
  EXPECT_EQ(prometheus_label("a\xff"
                             "b"),
            "a\xef\xbf\xbd"
            "b");
}

TEST(Prometheus, ExportsTheLastWholeLineOfALongFile) {
  TemporaryFolder folder;
  std::string lines;
  for (int step = 1; step <= 5000; ++step)
    lines += "{\"step\":" + std::to_string(step) + ",\"loss\":0.5,\"step_ms\":250}\n";
  write_whole_file(folder.path() + "/metrics.jsonl", lines + "{\"step\":5001,\"lo");
  const std::string text = prometheus_text({{"one", folder.path()}});
  const std::string run = "{run=\"one\"} ";
  EXPECT_THAT(text, HasSubstr("# HELP espalier_step Optimizer steps done.\n# TYPE espalier_step gauge\nespalier_step" +
                              run + "5000\n"));
  EXPECT_THAT(text, HasSubstr("espalier_step_seconds" + run + "0.25\n"));
  EXPECT_THAT(text, Not(HasSubstr("espalier_val_loss")));
}

TEST(Prometheus, GroupsTheSamplesOfSeveralRunsUnderOneName) {
  TemporaryFolder folder;
  for (const char* name : {"a", "b"}) {
    std::filesystem::create_directories(folder.path() + "/" + name + "/ranks");
    write_whole_file(folder.path() + "/" + name + "/metrics.jsonl", "{\"step\":3,\"loss\":null}\n");
  }
  write_whole_file(folder.path() + "/b/ranks/rank-0.json",
                   R"({"rank":0,"comm":[{"group":"dp","op":"all_reduce","algo":"ring","transport":"shm","calls":4}],)"
                   R"("memory":{"parameter":{"current":1,"peak":2}}})");
  const std::string text = prometheus_text({{"a", folder / "a"}, {"b", folder / "b"}});
  EXPECT_THAT(text,
              HasSubstr("# TYPE espalier_loss gauge\nespalier_loss{run=\"a\"} NaN\nespalier_loss{run=\"b\"} NaN\n"));
  EXPECT_THAT(text, HasSubstr("espalier_collective_calls_total{run=\"b\",rank=\"0\",group=\"dp\",op=\"all_reduce\","
                              "algorithm=\"ring\",transport=\"shm\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("espalier_memory_peak_bytes{run=\"b\",rank=\"0\",category=\"parameter\"} 2\n"));
}

TEST(Prometheus, CountsUnreadableFiles) {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  write_whole_file(folder / "elsewhere", "{\"loss\":7}\n");
  std::filesystem::create_symlink(folder / "elsewhere", folder / "run/metrics.jsonl");
  write_whole_file(folder / "run/summary.json", "{\"world\":");
  EXPECT_EQ(prometheus_text({{"r", folder / "run"}}),
            "# HELP espalier_unreadable_files Files of the run folder that could not be read.\n"
            "# TYPE espalier_unreadable_files gauge\nespalier_unreadable_files{run=\"r\"} 2\n");
}

TEST(Prometheus, RejectsAFolderThatIsNotARunFolder) {
  EXPECT_THROW(prometheus_text({{"none", "/nowhere/at/all"}}), IoError);
}

}  // namespace
}  // namespace esp::obs
