#include "esp/train/same_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/net/inproc/threads.h"
#include "esp/train/data_identity.h"
#include "esp/train/run_keys.h"

namespace esp::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

RankIdentity identity(const std::vector<std::string>& overrides, std::vector<std::string> files = {}) {
  RunConfig config = parse_run_config("", "run.toml", overrides);
  config.data.identity = std::move(files);
  return identity_of(config, "1.0 (abc)");
}

TEST(MayDifferByRank, NamesKeys) {
  RunConfig config;
  const std::vector<Field> all = fields(config);
  EXPECT_EQ(std::count_if(all.begin(), all.end(), may_differ_by_rank), 11);
}

TEST(RankIdentity, IsOfKeysThatThisRunReads) {
  const auto has = [](const RankIdentity& of, const std::string& key) {
    return std::any_of(of.keys.begin(), of.keys.end(), [&](const auto& one) { return one.first == key; });
  };
  EXPECT_TRUE(has(identity({}), "train.lr"));
  EXPECT_TRUE(has(identity({}), "checkpoint.every"));
  EXPECT_FALSE(has(identity({}), "sync.tau"));
  EXPECT_TRUE(has(identity({"sync.method=local"}), "sync.tau"));
  EXPECT_FALSE(has(identity({}), "run.threads"));
}

TEST(IdentityConflict, NamesKeysWithRanks) {
  const auto found = conflict_of({{{0, 1, 3}, identity({"train.lr=0.001"})},
                                  {{2}, identity({"train.lr=0.002", "checkpoint.every=5", "run.threads=7"})}});
  EXPECT_EQ(found.code, ExitCode::usage);
  EXPECT_THAT(found.text, AllOf(HasSubstr("train.lr: got 0.001 on ranks 0-1,3, 0.002 on rank 2\n"),
                                HasSubstr("checkpoint.every: got 'auto' on ranks 0-1,3, 5 on rank 2\n"),
                                Not(HasSubstr("run.threads"))));
}

TEST(IdentityConflict, NamesOtherMethodAndNotItsKeys) {
  const auto found =
      conflict_of({{{0}, identity({"sync.method=zero3"})}, {{1}, identity({"sync.method=local", "sync.tau=2"})}});
  EXPECT_THAT(found.text,
              AllOf(HasSubstr("sync.method: got zero3 on rank 0, local on rank 1\n"), Not(HasSubstr("sync.tau"))));
}

TEST(IdentityConflict, NamesFilesWithRanks) {
  const auto found = conflict_of({{{0, 1}, identity({}, {"data.train 10 aa a.txt", "data.train 5 bb b.txt"})},
                                  {{2}, identity({}, {"data.train 10 aa /copy/a.txt", "data.train 6 cc /copy/b.txt"})},
                                  {{3}, identity({}, {"data.train - - cannot open a.txt"})}});
  EXPECT_EQ(found.code, ExitCode::files);
  EXPECT_THAT(found.text, AllOf(HasSubstr("a.txt: got 10 bytes, hash aa on ranks 0-2, cannot open a.txt on rank 3\n"),
                                HasSubstr("b.txt: got 5 bytes, hash bb on ranks 0-1, 6 bytes, hash cc on rank 2, no "
                                          "file on rank 3\n")));
}

TEST(IdentityConflict, NamesVersions) {
  RankIdentity other = identity({});
  other.version = "1.1 (def)";
  const auto found = conflict_of({{{0}, identity({})}, {{1}, other}});
  EXPECT_EQ(found.code, ExitCode::usage);
  EXPECT_THAT(found.text, HasSubstr("version of espalier: got 1.0 (abc) on rank 0, 1.1 (def) on rank 1\n"));
}

// What every rank hears.
std::vector<std::string> meet(const std::vector<RankIdentity>& identities) {
  std::vector<std::string> heard(identities.size());
  net::run_threads(static_cast<int>(identities.size()), [&](net::World& world) {
    const auto rank = static_cast<size_t>(world.rank);
    try {
      check_same_run(world, identities[rank], Deadline::after(std::chrono::seconds(20)));
    } catch (const CollectiveRefusal& refusal) {
      heard[rank] = refusal.what();
    }
  });
  return heard;
}

TEST(CheckSameRun, AcceptsPathsThatDiffer) {
  EXPECT_THAT(meet({identity({}, {"data.train 10 aa a.txt"}), identity({"run.threads=3"}, {"data.train 10 aa b.txt"}),
                    identity({"data.train=[\"x\"]"}, {"data.train 10 aa a.txt"})}),
              testing::Each(""));
}

TEST(CheckSameRun, TellsAllRanksTheSame) {
  std::vector<std::string> long_list;
  for (int i = 0; i < 2000; ++i) long_list.push_back(fmt::format("data.val {} aa {:0>100}.txt", i, i));
  const auto heard = meet({identity({}), identity({}, long_list), identity({"train.lr=1"}), identity({})});
  EXPECT_THAT(heard, testing::Each(AllOf(HasSubstr("train.lr: got 0.0003 on ranks 0-1,3, 1.0 on rank 2"),
                                         HasSubstr("and 1981 more"))));
}

}  // namespace
}  // namespace esp::train
