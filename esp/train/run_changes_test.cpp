#include "esp/train/run_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "esp/base/error.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RunConfig config_of(const std::vector<std::string>& overrides) {
  return parse_run_config("", "run.toml", overrides);
}

std::vector<std::string> texts(const std::vector<KeyChange>& changes) {
  std::vector<std::string> all;
  for (const KeyChange& one : changes) all.push_back(one.text());
  return all;
}

TEST(RunChanges, SeparatesResultKeysFromOtherKeys) {
  const RunChanges changes = diff_run_configs(
      config_of({"train.lr=0.001", "train.steps=20"}),
      config_of({"train.lr=0.002", "train.steps=40", "model.layers=4", "parallel.tp=2", "run.name=other"}));
  EXPECT_THAT(texts(changes.result), ElementsAre("model.layers: 2 → 4", "train.lr: 0.001 → 0.002"));
  EXPECT_THAT(texts(changes.others), ElementsAre("train.steps: 20 → 40", "parallel.tp: 1 → 2"));
  EXPECT_EQ(changes.schedule, "train.schedule = cosine now ends at step 40, not 20");
}

TEST(RunChanges, ComparesResolvedConfigurations) {
  const RunConfig preset = config_of({"model.preset=gpt-tiny"});
  RunConfig spelled_out = preset;
  spelled_out.model.preset.clear();
  EXPECT_THAT(diff_run_configs(preset, spelled_out).result, IsEmpty());
  EXPECT_THAT(diff_run_configs(config_of({"model.heads=4"}), config_of({"model.heads=4", "model.kv_heads=4"})).result,
              IsEmpty());
  EXPECT_THAT(diff_run_configs(config_of({"model.ffn=256"}), config_of({})).result, IsEmpty());
  EXPECT_THAT(diff_run_configs(config_of({"sync.method=ddp"}), config_of({})).result, IsEmpty());
  EXPECT_THAT(diff_run_configs(config_of({"data.objective=next_token"}), config_of({})).result, IsEmpty());
  EXPECT_THAT(diff_run_configs(config_of({"model.vocab=257"}), config_of({})).result, IsEmpty());
  EXPECT_THAT(texts(diff_run_configs(config_of({"model.vocab=257"}), config_of({"model.vocab=300"})).result),
              ElementsAre("model.vocab: 257 → 300"));
}

TEST(RunChanges, IgnoresKeysThatNeitherRunReads) {
  RunConfig before = config_of({});
  before.sync.tau = 3;
  EXPECT_THAT(diff_run_configs(before, config_of({})).result, IsEmpty());
}

TEST(RunChanges, KeysOfModelDataOptimizerAndSeedAffectResult) {
  RunConfig config;
  for (const Field& field : fields(config)) {
    const bool named = field.section == "model.moe" || field.name() == "run.seed" || field.name() == "train.lr" ||
                       (field.section == "model" && field.key != "preset") ||
                       (field.section == "data" && field.key != "cache");
    if (named) {
      EXPECT_EQ(field.effect, Effect::result) << field.name();
    } else if (field.section == "log" || field.section == "comm") {
      EXPECT_EQ(field.effect, Effect::none) << field.name();
    }
  }
}

class PreviousRun : public testing::Test {
 protected:
  RunConfig config(std::vector<std::string> overrides) const {
    overrides.push_back("run.dir=" + (folder_ / "run"));
    return config_of(overrides);
  }
  void write_run(const std::string& run_toml) {
    std::filesystem::create_directories(folder_ / "run");
    obs::write_whole_file(folder_ / "run/run.toml", run_toml);
    obs::write_whole_file(folder_ / "run/metrics.jsonl", "{\"step\": 1}\n");
  }
  static std::string refusal(const RunConfig& config) {
    try {
      check_changes(config, false);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  }

  obs::TemporaryFolder folder_;
};

TEST_F(PreviousRun, ErrorNamesEveryChangedKeyAndThreeFixes) {
  write_run(to_toml(config({"train.lr=0.001"})));
  EXPECT_EQ(refusal(config({"train.lr=0.001", "train.steps=7"})), "accepted");
  const RunConfig other = config({"train.lr=0.002", "run.seed=2"});
  EXPECT_THAT(refusal(other),
              AllOf(HasSubstr("run.seed: 1 → 2\n"), HasSubstr("train.lr: 0.001 → 0.002\n"), HasSubstr("--run-dir"),
                    HasSubstr("--resume none"), HasSubstr("--continue-with-changes")));
  EXPECT_EQ(check_changes(other, true).result.size(), 2u);
}

TEST_F(PreviousRun, ErrorNamesFileWhenDataDiffers) {
  RunConfig before = config({}), now = config({});
  before.data.identity = {"data.train 10 aa a.txt", "model.init 7 bb init/manifest.json"};
  now.data.identity = {"data.train 11 cc moved/a.txt", "model.init 7 ff init/manifest.json"};
  write_run(to_toml(before));
  try {
    check_changes(now, false);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("data.train moved/a.txt: 10 bytes, hash aa → 11 bytes, hash cc"),
                                    HasSubstr("--continue-with-changes"), testing::Not(HasSubstr("model.init"))));
  }
  EXPECT_EQ(check_changes(now, true).files.size(), 1u);
  now.data.identity = {"data.train 10 aa moved/a.txt", "model.init 7 ff init/manifest.json"};
  EXPECT_THAT(check_changes(now, false).files, IsEmpty());
}

TEST_F(PreviousRun, IsIgnoredBeforeItsFirstStep) {
  write_run(to_toml(config({})));
  obs::write_whole_file(folder_ / "run/metrics.jsonl", "");
  EXPECT_EQ(refusal(config({"train.lr=0.002"})), "accepted");
}

TEST_F(PreviousRun, IsIgnoredWhenRunStartsFromScratch) {
  write_run(to_toml(config({})));
  EXPECT_EQ(refusal(config({"train.lr=0.002", "checkpoint.resume=none"})), "accepted");
  EXPECT_EQ(refusal(config({"train.lr=0.002", "checkpoint.resume=" + (folder_ / "elsewhere")})), "accepted");
}

TEST_F(PreviousRun, IsAcceptedFromOtherVersion) {
  write_run("[run]\nname = \"old\"\n[train]\nlr = 0.001\nno_longer = 3\n[gone]\na = 1\n");
  EXPECT_EQ(refusal(config({"train.lr=0.001"})), "accepted");
  EXPECT_THAT(refusal(config({"train.lr=0.002"})), HasSubstr("train.lr: 0.001 → 0.002"));
}

TEST_F(PreviousRun, IsRejectedWhenUnreadable) {
  write_run("[run\n");
  EXPECT_THAT(refusal(config({})), AllOf(HasSubstr("cannot be read"), HasSubstr("--resume none")));
  EXPECT_THAT(check_changes(config({}), true).result, IsEmpty());
}

}  // namespace
}  // namespace esp::train
