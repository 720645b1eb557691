// Several ranks write one checkpoint: threads or processes that share only a folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "esp/base/error.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/partial_manifest.h"
#include "esp/ckpt/safetensors.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::ckpt {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
constexpr auto kOther = device::MemoryCategory::other;
constexpr Duration kLong = seconds(60);  // timeout that a passing test never reaches

// In these tests the elements of all tensors of a model form one sequence. Each rank holds a contiguous range of that
// sequence.
struct Named {
  std::string name;
  tensor::Shape shape;
};
const std::vector<Named> kModel = {{"a", {7, 5}}, {"b", {3}}, {"c", {8, 8}}, {"d", {1}}};
const std::vector<Named> kOptimizer = {{"optimizer.m.a", {7, 5}}, {"optimizer.m.b", {3}}};

int64_t count_of(const std::vector<Named>& tensors) {
  int64_t count = 0;
  for (const Named& one : tensors) count += one.shape.count();
  return count;
}

// Waits until another thread or process makes the condition true; returns false after one minute.
template <typename F>
bool eventually(F&& happened) {
  const Deadline deadline = Deadline::after(kLong);
  while (!happened()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

struct MultiRankSaveTest : testing::Test {
  obs::TemporaryFolder folder;
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  tensor::Context context{{}, &pool};
  const std::string dir = folder / "checkpoints";

  // A value that depends on its position, so that any misplaced element is detected.
  static float value_at(int64_t at, uint64_t seed) {
    const auto bits = static_cast<uint32_t>((static_cast<uint64_t>(at) + seed * 1000003) * 2654435761u);
    return static_cast<float>(bits >> 8) * 0x1p-24f;
  }

  // Elements [begin, end) of the sequence as slices. The slices have no values yet.
  std::vector<TensorSlice> pieces_of(const std::vector<Named>& tensors, int64_t begin, int64_t end) {
    std::vector<TensorSlice> slices;
    int64_t at = 0;
    for (const Named& one : tensors) {
      const int64_t from = std::max(begin, at), to = std::min(end, at + one.shape.count());
      if (from < to)
        slices.push_back(
            {one.name, one.shape, {}, {}, from - at, tensor::zeros(context, {to - from}, DType::f32, kOther)});
      at += one.shape.count();
    }
    return slices;
  }
  std::vector<TensorSlice> filled(const std::vector<Named>& tensors, int64_t begin, int64_t end, uint64_t seed) {
    std::vector<TensorSlice> slices = pieces_of(tensors, begin, end);
    for (const TensorSlice& slice : slices)
      for (int64_t i = 0; i < slice.values.count(); ++i) slice.values.as<float>()[i] = value_at(begin++, seed);
    return slices;
  }
  // Makes one snapshot per rank from that rank's range of the model elements and of the optimizer elements.
  std::vector<Snapshot> snapshots(int64_t step, const std::vector<int64_t>& model,
                                  const std::vector<int64_t>& optimizer, uint64_t seed = 1) {
    std::vector<Snapshot> all(model.size());
    int64_t m = 0, o = 0;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      all[rank].step = step;
      all[rank].model = filled(kModel, m, m + model[rank], seed);
      all[rank].optimizer = filled(kOptimizer, o, o + optimizer[rank], seed + 1);
      all[rank].state = {{"rank_of_this_state", rank}};
      m += model[rank];
      o += optimizer[rank];
    }
    return all;
  }
  static std::vector<int64_t> shares(int64_t count, int64_t n) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < n; ++i) all.push_back(count * (i + 1) / n - count * i / n);
    return all;
  }

  SaveOptions options_of(int rank, int world, const std::string& token, Duration timeout = kLong) {
    SaveOptions options;
    options.rank = rank;
    options.world = world;
    options.token = token;
    options.timeout = timeout;
    return options;
  }
  std::string partial(int64_t step, const std::string& token) {
    return fmt::format("{}/.partial-step-{}.{}", dir, step, token);
  }

  struct Outcome {
    std::string path, error;
  };
  Outcome outcome_of(const Snapshot& snapshot, const SaveOptions& options) {
    try {
      return {save(dir, snapshot, options), ""};
    } catch (const IoError& error) {
      return {"", error.what()};
    }
  }
  // Saves with one thread per rank. `change` may modify the rank's options, or run code before the rank saves.
  std::vector<Outcome> save_all(const std::vector<Snapshot>& all, const std::string& token,
                                const std::function<void(int rank, SaveOptions&)>& change = {}) {
    std::vector<Outcome> outcomes(all.size());
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < all.size(); ++rank)
      threads.emplace_back([&, rank] {
        SaveOptions options = options_of(static_cast<int>(rank), static_cast<int>(all.size()), token);
        if (change) change(static_cast<int>(rank), options);
        outcomes[rank] = outcome_of(all[rank], options);
      });
    threads.clear();
    return outcomes;
  }

  // Reads the checkpoint as n ranks would, and expects the right values in every rank's range of model and optimizer
  // elements.
  void expect_readable_by(int64_t n, const std::string& path, uint64_t seed = 1) {
    const auto checkpoint = open_checkpoint(path);
    for (const auto* tensors : {&kModel, &kOptimizer}) {
      int64_t at = 0;
      for (int64_t share : shares(count_of(*tensors), n)) {
        const auto expected = filled(*tensors, at, at + share, tensors == &kModel ? seed : seed + 1);
        const auto wanted = pieces_of(*tensors, at, at + share);
        for (size_t i = 0; i < wanted.size(); ++i) {
          checkpoint->read(wanted[i]);
          EXPECT_EQ(std::memcmp(wanted[i].values.data(), expected[i].values.data(), wanted[i].values.bytes()), 0)
              << wanted[i].name << " from " << wanted[i].first << ", " << n << " readers";
        }
        at += share;
      }
    }
  }
  std::set<std::string> names_in(const std::string& path) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path)) names.insert(entry.path().filename());
    return names;
  }
  void expect_all_fail_with(const std::vector<Outcome>& outcomes, const std::string& text) {
    for (const Outcome& one : outcomes) {
      EXPECT_EQ(one.path, "");
      EXPECT_THAT(one.error, HasSubstr(text));
      EXPECT_EQ(one.error, outcomes[0].error);
    }
  }
};

TEST_F(MultiRankSaveTest, ReadsUnevenShardsOnAnyNumberOfRanks) {
  // One rank has no data at all, and another has no optimizer state. Some ranges end at tensor boundaries, others
  // inside tensors.
  const auto outcomes = save_all(snapshots(7, {40, 0, 13, 50}, {1, 0, 37, 0}), "t", [](int rank, SaveOptions& options) {
    if (rank == 0) options.add_files = [](const std::string& to) { std::ofstream(to + "/tokenizer.json") << "{}"; };
    if (rank == 3) options.shard_bytes = 100;
  });
  for (const Outcome& one : outcomes) EXPECT_EQ(one.path, dir + "/step-7") << one.error;
  EXPECT_EQ(names_in(dir), std::set<std::string>{"step-7"});
  EXPECT_EQ(names_in(dir + "/step-7"),
            (std::set<std::string>{"model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                                   "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
                                   "optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors",
                                   "tokenizer.json", "manifest.json"}));
  EXPECT_EQ(open_checkpoint(dir + "/step-7")->state().at("rank_of_this_state"), 0);
  for (int64_t n : {1, 2, 3, 5}) expect_readable_by(n, dir + "/step-7");
  // A tensor that one rank holds as a whole is stored under its own name and shape, so other tools can read it.
  const SafetensorsFile file(dir + "/step-7/model-00001-of-00004.safetensors");
  ASSERT_NE(file.find("a"), nullptr);
  EXPECT_EQ(file.find("a")->shape, (std::vector<int64_t>{7, 5}));
}

TEST_F(MultiRankSaveTest, ProcessesSaveWhenTheyShareOnlyTheFolder) {
  const auto all = snapshots(3, shares(103, 3), shares(38, 3));
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(fork());
    if (children.back() == 0)
      _exit(outcome_of(all[static_cast<size_t>(rank)], options_of(rank, 3, "t")).path == dir + "/step-3" ? 0 : 1);
  }
  for (pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  expect_readable_by(2, dir + "/step-3");
}

TEST_F(MultiRankSaveTest, ReshardingFromFourToThreeToOneRankKeepsEveryBit) {
  ASSERT_EQ(save_all(snapshots(4, {1, 60, 2, 40}, {10, 10, 10, 8}), "t")[0].error, "");
  std::string path = dir + "/step-4";
  for (int64_t n : {3, 1}) {
    const auto checkpoint = open_checkpoint(path);
    std::vector<Snapshot> all = snapshots(n, shares(103, n), shares(38, n), 99);
    for (Snapshot& one : all)
      for (auto* slices : {&one.model, &one.optimizer})
        for (TensorSlice& slice : *slices) checkpoint->read(slice);
    for (const Outcome& one : save_all(all, "again")) EXPECT_EQ(one.error, "");
    path = fmt::format("{}/step-{}", dir, n);
    for (int64_t readers : {1, 4}) expect_readable_by(readers, path);
  }
}

TEST_F(MultiRankSaveTest, ErrorNamesTheMissingRank) {
  ASSERT_EQ(save_all(snapshots(5, {50, 53}, {38, 0}), "before")[0].error, "");
  std::vector<Snapshot> all = snapshots(9, {50, 53, 0}, {38, 0, 0});
  all.pop_back();
  const auto outcomes = save_all(all, "t", [&](int rank, SaveOptions& options) {
    options.world = 3;
    if (rank != 0) return;
    options.timeout = milliseconds(100);
    options.add_files = [&](const std::string&) {  // rank 0 waits for rank 1's partial manifest
      EXPECT_TRUE(eventually([&] { return fs::exists(partial(9, "t") + "/parts/" + partial_manifest_name(1)); }));
    };
  });
  expect_all_fail_with(outcomes, "rank 2 of 3 has not written");
  EXPECT_EQ(newest_complete(dir), dir + "/step-5");
  EXPECT_FALSE(fs::exists(dir + "/step-9"));
  EXPECT_FALSE(fs::exists(partial(9, "t")));
  // The next attempt succeeds and removes all files of the failed attempt.
  ASSERT_EQ(save_all(snapshots(9, {50, 53}, {38, 0}), "u")[1].error, "");
  EXPECT_EQ(names_in(dir), (std::set<std::string>{"step-5", "step-9"}));
}

TEST_F(MultiRankSaveTest, FailsOnAllRanksWhenOneRankFails) {
  const auto outcomes = save_all(snapshots(9, {30, 30, 43}, {0, 0, 38}), "t", [&](int rank, SaveOptions&) {
    if (rank != 1) return;
    // A file already has the name that rank 1 must create, so rank 1 fails.
    ASSERT_TRUE(eventually([&] { return fs::exists(partial(9, "t") + "/parts"); }));
    std::ofstream(partial(9, "t") + "/model-r00001-00001.safetensors") << "x";
  });
  expect_all_fail_with(outcomes, "rank 1: ");
  EXPECT_THAT(outcomes[0].error, HasSubstr("EEXIST"));
  EXPECT_FALSE(fs::exists(dir + "/step-9"));
}

TEST_F(MultiRankSaveTest, AbortsAttemptWhenRankZeroTimesOut) {
  const auto outcomes = save_all(snapshots(9, {50, 53}, {38, 0}), "t", [&](int rank, SaveOptions& options) {
    if (rank == 1) {
      EXPECT_TRUE(eventually([&] { return fs::exists(partial(9, "t") + "/parts"); }));
      options.timeout = milliseconds(50);
    }
    if (rank == 0)
      options.add_files = [&](const std::string&) {
        EXPECT_TRUE(eventually([&] { return fs::exists(dir + "/.failed-step-9.t"); }));
      };
  });
  expect_all_fail_with(outcomes, "rank 1: rank 0 did not complete the checkpoint within 0.05 s");
  EXPECT_FALSE(fs::exists(dir + "/step-9"));
}

TEST_F(MultiRankSaveTest, AllRanksSucceedOrAllFailNearTheTimeout) {
  int num_complete = 0;
  for (int64_t step = 1; step <= 60; ++step) {
    const auto outcomes = save_all(snapshots(step, {30, 30, 43}, {0, 38, 0}), fmt::format("t{}", step),
                                   [&](int rank, SaveOptions& options) {
                                     if (rank == 1) options.timeout = std::chrono::microseconds(80 * step);
                                   });
    const bool complete = fs::exists(fmt::format("{}/step-{}/manifest.json", dir, step));
    num_complete += complete;
    for (const Outcome& one : outcomes) {
      EXPECT_EQ(one.path.empty(), !complete) << step << ": " << one.error;
      EXPECT_EQ(one.error, outcomes[0].error) << step;
    }
  }
  RecordProperty("complete", num_complete);
}

TEST_F(MultiRankSaveTest, LateRankZeroReportsTheTimeoutOfTheOthers) {
  const auto all = snapshots(9, {50, 53}, {38, 0});
  const Outcome late = outcome_of(all[1], options_of(1, 2, "t", milliseconds(50)));
  EXPECT_THAT(late.error, HasSubstr("rank 1: rank 0 did not start the checkpoint within 0.05 s"));
  EXPECT_FALSE(fs::exists(dir + "/step-9"));
  fs::create_directories(dir);
  EXPECT_NE(outcome_of(all[1], options_of(1, 2, "u", milliseconds(50))).error, "");
  EXPECT_THAT(outcome_of(all[0], options_of(0, 2, "u")).error,
              HasSubstr("rank 0 did not start the checkpoint within 0.05 s"));
}

TEST_F(MultiRankSaveTest, IgnoresFilesOfCrashedAttempt) {
  // An attempt of three ranks crashes: one never starts, and two are killed. One of the killed ranks has already
  // written its partial manifest.
  const auto old = snapshots(5, {50, 50, 3}, {38, 0, 0}, 77);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(fork());
    if (children.back() == 0) {
      outcome_of(old[static_cast<size_t>(rank)], options_of(rank, 3, "killed"));
      _exit(0);
    }
  }
  EXPECT_TRUE(eventually([&] { return fs::exists(partial(5, "killed") + "/parts/" + partial_manifest_name(1)); }));
  for (pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  EXPECT_EQ(newest_complete(dir), std::nullopt);
  ASSERT_TRUE(fs::exists(partial(5, "killed")));
  for (const Outcome& one : save_all(snapshots(5, {3, 100}, {0, 38}), "t")) EXPECT_EQ(one.error, "");
  EXPECT_EQ(names_in(dir), std::set<std::string>{"step-5"});
  EXPECT_EQ(names_in(dir + "/step-5").size(), 4u);
  expect_readable_by(3, dir + "/step-5");
}

TEST_F(MultiRankSaveTest, ReplacesCheckpointOfSameStepOnlyWhenComplete) {
  for (const Outcome& one : save_all(snapshots(5, {50, 53}, {38, 0}, 1), "t")) ASSERT_EQ(one.error, "");
  // Rank 1 does not mistake the old checkpoint of the same step for the new one.
  const auto failed = save_all(snapshots(5, {50, 53}, {38, 0}, 2), "u", [](int rank, SaveOptions& options) {
    if (rank == 0) options.add_files = [](const std::string&) { throw IoError("no tokenizer"); };
  });
  expect_all_fail_with(failed, "rank 0: no tokenizer");
  expect_readable_by(1, dir + "/step-5", 1);
  for (const Outcome& one : save_all(snapshots(5, {50, 53}, {38, 0}, 3), "v")) EXPECT_EQ(one.error, "");
  expect_readable_by(1, dir + "/step-5", 3);
}

TEST_F(MultiRankSaveTest, RejectsDuplicateMissingOrInconsistentSlices) {
  std::vector<Snapshot> twice = snapshots(5, {50, 53}, {38, 0});
  twice[1].model.push_back(twice[0].model[0]);
  expect_all_fail_with(save_all(twice, "t"), "exactly once");
  std::vector<Snapshot> hole = snapshots(5, {50, 53}, {38, 0});
  hole[1].model.pop_back();
  hole[1].model.pop_back();
  expect_all_fail_with(save_all(hole, "u"), "every element of tensor c with shape [8, 8]");
  std::vector<Snapshot> types = snapshots(5, {50, 53}, {38, 0});
  types[1].model[0].values = tensor::zeros(context, types[1].model[0].values.shape(), DType::bf16, kOther);
  expect_all_fail_with(save_all(types, "v"),
                       "c: got dtype bf16, shape [8, 8] on rank 1; other ranks have dtype f32, shape [8, 8]");
}

TEST_F(MultiRankSaveTest, KeepsNewestAndNeverRemovesNewCheckpoint) {
  const auto keep_two = [](int, SaveOptions& options) { options.keep = 2; };
  for (int64_t step : {10, 20, 30})
    ASSERT_EQ(save_all(snapshots(step, {50, 53}, {38, 0}), fmt::format("t{}", step), keep_two)[1].error, "");
  EXPECT_EQ(names_in(dir), (std::set<std::string>{"step-20", "step-30"}));
  // The run resumes from an earlier step while checkpoints of later steps exist.
  for (const Outcome& one : save_all(snapshots(15, {50, 53}, {38, 0}), "u", keep_two)) EXPECT_EQ(one.error, "");
  EXPECT_EQ(names_in(dir), (std::set<std::string>{"step-15", "step-30"}));
}

TEST_F(MultiRankSaveTest, StoppingRankDoesNotWaitForTimeout) {
  const std::atomic<bool> stopping{true};
  SaveOptions options = options_of(0, 2, "t", std::chrono::hours(1));
  options.stopping = &stopping;
  EXPECT_THAT(outcome_of(snapshots(1, {50, 53}, {38, 0})[0], options).error, HasSubstr("rank 1 of 2 has not written"));
}

TEST_F(MultiRankSaveTest, RejectsInvalidTokenAndRank) {
  const Snapshot one = snapshots(1, {103}, {38})[0];
  EXPECT_THROW(save(dir, one, options_of(0, 2, "")), UsageError);
  EXPECT_THROW(save(dir, one, options_of(0, 2, "../t")), UsageError);
  EXPECT_THROW(save(dir, one, options_of(2, 2, "t")), UsageError);
  EXPECT_FALSE(fs::exists(dir));
}

TEST(PartialManifestTest, RejectsFilesOfOtherRanks) {
  PartialManifest part{2, 4, {}};
  part.manifest.step = 1;
  EXPECT_EQ(to_json(parse_partial_manifest(to_json(part), "p")), to_json(part));  // a rank may have no files
  part.manifest.files["optimizer-r00002-00001.safetensors"] = {1, "x"};
  EXPECT_EQ(parse_partial_manifest(to_json(part), "p").rank, 2);
  part.manifest.files["model-r00001-00001.safetensors"] = {1, "x"};
  EXPECT_THROW(parse_partial_manifest(to_json(part), "p"), IoError);
  EXPECT_THROW(parse_partial_manifest(to_json(PartialManifest{4, 4, {}}), "p"), IoError);
  EXPECT_THROW(parse_partial_manifest(to_json(PartialManifest{-1, 4, {}}), "p"), IoError);
}

}  // namespace
}  // namespace esp::ckpt
