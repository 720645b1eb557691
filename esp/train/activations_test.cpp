// train.activations chooses which activations are stored. The choice changes memory use and nothing else.
#include <gtest/gtest.h>

#include <fstream>

#include "esp/base/error.h"
#include "esp/obs/temporary_folder.h"
#include "esp/train/engine.h"

namespace esp::train {
namespace {

struct Seen {
  std::vector<double> losses;
  uint64_t peak = 0;
};

Seen train(std::vector<std::string> overrides) {
  const obs::TemporaryFolder folder;
  std::ofstream(folder / "text.txt") << std::string(20'000, 'a') << std::string(20'000, 'b');
  overrides.insert(overrides.end(), {"train.global_batch=4", "run.threads=2", "train.precision=fp64",
                                     "model.dropout=0.1", "run.dir=" + (folder / "run")});
  RunConfig config = parse_run_config("", "run.toml", overrides);
  config.data.train = {folder / "text.txt"};
  Engine engine(config, Log());
  Seen seen;
  for (int step = 0; step < 5; ++step) seen.losses.push_back(engine.step().loss);
  seen.peak = engine.account().use(device::MemoryCategory::activation).peak;
  return seen;
}

TEST(TrainActivations, TextbookModeGivesSameLossAndUsesMoreMemory) {
  const Seen lean = train({});
  for (const char* recompute : {"none", "selective", "full"}) {
    const Seen textbook = train({"train.activations=textbook", fmt::format("train.recompute={}", recompute)});
    for (size_t i = 0; i < lean.losses.size(); ++i)
      EXPECT_NEAR(textbook.losses[i], lean.losses[i], 1e-11) << recompute << ' ' << i;
    if (std::string_view(recompute) == "none") {
      EXPECT_GT(textbook.peak, lean.peak);
    }
  }
}

TEST(TrainActivations, RejectsUnknownActivationsAndTextbookWithContextParallel) {
  EXPECT_THROW(parse_run_config("", "run.toml", {"train.activations=heavy"}).check(), UsageError);
  const RunConfig divided =
      parse_run_config("", "run.toml", {"train.activations=textbook", "parallel.cp=2", "train.global_batch=4"});
  try {
    divided.check_world(2);
    FAIL() << "parallel.cp = 2 was accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("train.activations"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace esp::train
