#include "esp/train/rank_identity.h"

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
  return rank_identity(config, "1.0 (abc)");
}

TEST(KeysThatMayDifferByRank, AreElevenKeys) {
  RunConfig config;
  const std::vector<Field> all = fields(config);
  EXPECT_EQ(std::count_if(all.begin(), all.end(), may_differ_by_rank), 11);
}

TEST(RankIdentity, ContainsOnlyKeysTheRunReads) {
  const auto has = [](const RankIdentity& of, const std::string& key) {
    return std::any_of(of.keys.begin(), of.keys.end(), [&](const auto& one) { return one.first == key; });
  };
  EXPECT_TRUE(has(identity({}), "train.lr"));
  EXPECT_TRUE(has(identity({}), "checkpoint.every"));
  EXPECT_FALSE(has(identity({}), "sync.tau"));
  EXPECT_TRUE(has(identity({"sync.method=local"}), "sync.tau"));
  EXPECT_FALSE(has(identity({}), "run.threads"));
}

TEST(IdentityConflict, MessageNamesKeysWithRanks) {
  const auto found =
      find_identity_conflict({{{0, 1, 3}, identity({"train.lr=0.001"})},
                              {{2}, identity({"train.lr=0.002", "checkpoint.every=5", "run.threads=7"})}});
  EXPECT_EQ(found.code, ExitCode::usage);
  EXPECT_THAT(found.text, AllOf(HasSubstr("train.lr: got 0.001 on ranks 0-1,3, 0.002 on rank 2\n"),
                                HasSubstr("checkpoint.every: got 'auto' on ranks 0-1,3, 5 on rank 2\n"),
                                Not(HasSubstr("run.threads"))));
}

TEST(IdentityConflict, MessageNamesOtherMethodWithoutItsKeys) {
  const auto found = find_identity_conflict(
      {{{0}, identity({"sync.method=zero3"})}, {{1}, identity({"sync.method=local", "sync.tau=2"})}});
  EXPECT_THAT(found.text,
              AllOf(HasSubstr("sync.method: got zero3 on rank 0, local on rank 1\n"), Not(HasSubstr("sync.tau"))));
}

TEST(IdentityConflict, MessageNamesFilesWithRanks) {
  const auto found =
      find_identity_conflict({{{0, 1}, identity({}, {"data.train 10 aa a.txt", "data.train 5 bb b.txt"})},
                              {{2}, identity({}, {"data.train 10 aa /copy/a.txt", "data.train 6 cc /copy/b.txt"})},
                              {{3}, identity({}, {"data.train - - cannot open a.txt"})}});
  EXPECT_EQ(found.code, ExitCode::files);
  EXPECT_THAT(found.text, AllOf(HasSubstr("a.txt: got 10 bytes, hash aa on ranks 0-2, cannot open a.txt on rank 3\n"),
                                HasSubstr("b.txt: got 5 bytes, hash bb on ranks 0-1, 6 bytes, hash cc on rank 2, no "
                                          "file on rank 3\n")));
}

TEST(IdentityConflict, MessageNamesVersions) {
  RankIdentity other = identity({});
  other.version = "1.1 (def)";
  const auto found = find_identity_conflict({{{0}, identity({})}, {{1}, other}});
  EXPECT_EQ(found.code, ExitCode::usage);
  EXPECT_THAT(found.text, HasSubstr("version of espalier: got 1.0 (abc) on rank 0, 1.1 (def) on rank 1\n"));
}

// The error message on each rank, after ranks with these identities have compared them.
std::vector<std::string> compare_ranks(const std::vector<RankIdentity>& identities) {
  std::vector<std::string> errors(identities.size());
  net::run_threads(static_cast<int>(identities.size()), [&](net::World& world) {
    const auto rank = static_cast<size_t>(world.rank);
    try {
      check_same_run(world, identities[rank], Deadline::after(std::chrono::seconds(20)));
    } catch (const CollectiveError& refusal) {
      errors[rank] = refusal.what();
    }
  });
  return errors;
}

TEST(CheckSameRun, AcceptsDifferentPaths) {
  EXPECT_THAT(
      compare_ranks({identity({}, {"data.train 10 aa a.txt"}), identity({"run.threads=3"}, {"data.train 10 aa b.txt"}),
                     identity({"data.train=[\"x\"]"}, {"data.train 10 aa a.txt"})}),
      testing::Each(""));
}

TEST(CheckSameRun, ThrowsTheSameErrorOnAllRanks) {
  std::vector<std::string> long_list;
  for (int i = 0; i < 2000; ++i) long_list.push_back(fmt::format("data.val {} aa {:0>100}.txt", i, i));
  const auto errors = compare_ranks({identity({}), identity({}, long_list), identity({"train.lr=1"}), identity({})});
  EXPECT_THAT(errors, testing::Each(AllOf(HasSubstr("train.lr: got 0.0003 on ranks 0-1,3, 1.0 on rank 2"),
                                          HasSubstr("and 1981 more"))));
}

}  // namespace
}  // namespace esp::train
