#include "esp/dash/find_runs.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/obs/temporary_folder.h"

namespace esp::dash {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FindRuns : public testing::Test {
 protected:
  std::string make(const std::string& name) {
    std::filesystem::create_directories(at(name));
    std::ofstream(at(name) + "/run.toml") << "[run]\n";
    return at(name);
  }
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  static std::vector<std::string> names(const std::vector<FoundRun>& runs) {
    std::vector<std::string> all;
    for (const FoundRun& run : runs) all.push_back(run.name);
    return all;
  }
  obs::TemporaryFolder folder_;
};

TEST_F(FindRuns, NamesRunsByLastPathPartWhenUnique) {
  EXPECT_THAT(names(find_all_runs({make("a/one"), make("b/two")})), ElementsAre("one", "two"));
}

TEST_F(FindRuns, ExtendsEqualNamesUntilUnique) {
  EXPECT_THAT(names(find_all_runs({make("x/a/base"), make("y/a/base"), make("y/b/base"), make("other")})),
              ElementsAre("x/a/base", "y/a/base", "b/base", "other"));
}

TEST_F(FindRuns, ListsRunOnceWhenGivenTwice) {
  const std::string run = make("a/one");
  EXPECT_THAT(names(find_all_runs({run, run + "/", at("a/../a/one"), at("a")})), ElementsAre("one"));
}

TEST_F(FindRuns, SearchesFoldersOfRuns) {
  make("runs/b");
  make("runs/a");
  make("runs/sweep/c");
  make("runs/sweep/deep/d");
  EXPECT_THAT(names(find_all_runs({at("runs")})), ElementsAre("a", "b", "c"));
}

TEST_F(FindRuns, ReportsFoldersWithoutRun) {
  const std::string run = make("one");
  std::filesystem::create_directories(at("empty"));
  EXPECT_THROW(find_all_runs({run, at("empty")}), IoError);
  EXPECT_THROW(find_all_runs({at("nowhere")}), IoError);
  std::vector<std::string> refused;
  EXPECT_THAT(names(find_all_runs({at("empty"), run, at("nowhere")}, &refused)), ElementsAre("one"));
  EXPECT_THAT(refused,
              ElementsAre(HasSubstr("/empty: got a folder without a run"), HasSubstr("/nowhere: No such file")));
}

}  // namespace
}  // namespace esp::dash
