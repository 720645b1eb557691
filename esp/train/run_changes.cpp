#include "esp/train/run_changes.h"

#include <filesystem>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/hf_folder.h"
#include "esp/ckpt/manifest.h"
#include "esp/ckpt/steps.h"
#include "esp/obs/file.h"
#include "esp/train/data_identity.h"
#include "esp/train/loaded.h"
#include "esp/train/run_keys.h"

namespace esp::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxManifestBytes = size_t{1} << 30;

// 0 until the data or the number of ranks decide it.
bool is_open(const Field& field) {
  constexpr std::string_view kOpen[] = {"model.vocab", "model.classes", "parallel.dp", "train.micro_batch"};
  for (const std::string_view name : kOpen)
    if (field.name() == name) return *std::get<int64_t*>(field.value) == 0;
  return false;
}

bool is_there(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

RunConfig read_run_toml(const std::string& path) {
  return parse_resolved_config(obs::read_whole_file(path, kMaxRunFileBytes), path, UnknownKeys::skip);
}

std::optional<RunConfig> read_manifest(const std::string& checkpoint) {
  const std::string path = fmt::format("{}/{}", checkpoint, ckpt::kManifestName);
  const ckpt::Manifest manifest = ckpt::parse_manifest(obs::read_whole_file(path, kMaxManifestBytes), path);
  return run_of_checkpoint(manifest.state, path);
}

// Whether the run goes on from its folder's own checkpoints.
bool resumes_here(const RunConfig& config) {
  const std::string& wish = config.checkpoint.resume;
  if (wish == "auto" || wish == "none") return wish == "auto";
  if (ckpt::is_hf_folder(wish)) return false;
  try {
    std::error_code error;
    return fs::equivalent(fs::path(checkpoint_at(wish)).parent_path(), checkpoint_folder_of(config), error);
  } catch (const IoError&) {
    return false;  // no checkpoint there: resuming says so
  }
}

// run.toml; the newest checkpoint's manifest where there is none, or where the checkpoints are another folder's.
// Nothing where no step was made.
std::optional<RunConfig> former_run(const RunConfig& config) {
  const std::string folder = run_folder_of(config), checkpoints = checkpoint_folder_of(config);
  const std::string run_toml = folder + "/run.toml", metrics = folder + "/metrics.jsonl";
  const bool has_checkpoints = !ckpt::steps_under(checkpoints).empty();
  std::error_code error;
  const bool has_metrics = fs::is_regular_file(metrics, error) && fs::file_size(metrics, error) > 0;
  if (!has_checkpoints && !has_metrics) return std::nullopt;
  std::optional<RunConfig> former;
  if (is_there(run_toml)) former = read_run_toml(run_toml);
  const bool elsewhere = former && former->checkpoint.dir != config.checkpoint.dir;
  if (has_checkpoints && (!former || elsewhere))
    if (const auto newest = ckpt::newest_complete(checkpoints)) {
      auto of_checkpoint = read_manifest(*newest);
      if (of_checkpoint) former = std::move(of_checkpoint);
    }
  return former;
}

constexpr const char* kWaysOut =
    "--run-dir DIR trains in another folder; --resume none starts over here (the run that is here moves to before-N); "
    "--continue-with-changes goes on with the new values and records them";

}  // namespace

std::optional<RunConfig> run_of_checkpoint(const Json& state, const std::string& name) {
  const auto run = state.find("run");
  if (run == state.end() || !run->is_string()) return std::nullopt;
  return parse_resolved_config(run->get<std::string>(), name, UnknownKeys::skip);
}

std::string KeyChange::text() const {
  return fmt::format("{}: {} → {}", key, before, now);
}

RunChanges changes_between(const RunConfig& before, const RunConfig& now) {
  RunConfig old_config = settled(before), new_config = settled(now);
  const std::vector<Field> olds = fields(old_config), news = fields(new_config);
  RunChanges changes;
  // What an older version wrote knows nothing of its files. model.init was read when the run began.
  if (!before.data.identity.empty() && !now.data.identity.empty())
    for (const IdentityChange& one : identity_changes(before.data.identity, now.data.identity))
      if (!one.subject.starts_with("model.init")) changes.files.push_back({one.subject, one.before, one.now});
  for (size_t i = 0; i < olds.size(); ++i) {
    const Field &was = olds[i], &is = news[i];
    if (was.name() == "data.identity" || was.effect == Effect::not_compared || is_open(was) || is_open(is)) continue;
    const std::string before_text = plain_text(was), now_text = plain_text(is);
    if (before_text == now_text || (!is_read(olds, was) && !is_read(news, is))) continue;
    (was.effect == Effect::result ? changes.result : changes.others).push_back({was.name(), before_text, now_text});
  }
  if (before.train.steps != now.train.steps && now.train.schedule != "constant")
    changes.schedule = fmt::format("train.schedule = {} now ends at step {}, not {}", now.train.schedule,
                                   now.train.steps, before.train.steps);
  return changes;
}

RunChanges check_changes(const RunConfig& config, bool accepted) {
  if (!resumes_here(config)) return {};
  const std::string folder = run_folder_of(config);
  std::optional<RunConfig> former;
  RunChanges changes;
  try {
    former = former_run(config);
    if (former) changes = changes_between(*former, config);
  } catch (const Error& error) {
    if (accepted) return {};
    throw UsageError(fmt::format("{}: the run file of the run in this folder cannot be read: {}\n{}", folder,
                                 error.what(), kWaysOut));
  }
  if ((changes.result.empty() && changes.files.empty()) || accepted) return changes;
  std::string lines;
  for (const auto* some : {&changes.result, &changes.files})
    for (const KeyChange& change : *some) lines += fmt::format("\n  {}", change.text());
  if (changes.result.empty())
    throw IoError(fmt::format("{}: holds a run that read other data:{}\n{}", folder, lines, kWaysOut));
  const std::string& made_from = former->run.file;
  const bool same_file = made_from.empty() || made_from == config.run.file;
  throw UsageError(fmt::format(
      "{}: holds a run with other values of keys that change the result{}:{}\n{}", folder,
      same_file ? "" : fmt::format(" (run file {}, this one is {})", made_from, config.run.file), lines, kWaysOut));
}

}  // namespace esp::train
