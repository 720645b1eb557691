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
#include "esp/train/run_keys.h"
#include "esp/train/trained_model.h"

namespace esp::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxManifestBytes = size_t{1} << 30;

// True if the value is 0 and will be set later, from the data or from the number of ranks.
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
  return checkpoint_run_config(manifest.state, path);
}

// True if the run resumes from a checkpoint in its own folder.
bool resumes_here(const RunConfig& config) {
  const std::string& wish = config.checkpoint.resume;
  if (wish == "auto" || wish == "none") return wish == "auto";
  if (ckpt::is_hf_folder(wish)) return false;
  try {
    std::error_code error;
    return fs::equivalent(fs::path(resolve_checkpoint(wish)).parent_path(), checkpoint_folder_of(config), error);
  } catch (const IoError&) {
    return false;  // there is no checkpoint; the code that resumes reports this
  }
}

// The configuration of the previous run in this folder: from run.toml, or from the newest checkpoint's manifest if
// there is no run.toml or the checkpoints are in another folder. Empty if that run made no step.
std::optional<RunConfig> previous_run(const RunConfig& config) {
  const std::string folder = run_folder_of(config), checkpoints = checkpoint_folder_of(config);
  const std::string run_toml = folder + "/run.toml", metrics = folder + "/metrics.jsonl";
  const bool has_checkpoints = !ckpt::list_steps(checkpoints).empty();
  std::error_code error;
  const bool has_metrics = fs::is_regular_file(metrics, error) && fs::file_size(metrics, error) > 0;
  if (!has_checkpoints && !has_metrics) return std::nullopt;
  std::optional<RunConfig> previous;
  if (is_there(run_toml)) previous = read_run_toml(run_toml);
  const bool elsewhere = previous && previous->checkpoint.dir != config.checkpoint.dir;
  if (has_checkpoints && (!previous || elsewhere))
    if (const auto newest = ckpt::newest_complete(checkpoints)) {
      auto of_checkpoint = read_manifest(*newest);
      if (of_checkpoint) previous = std::move(of_checkpoint);
    }
  return previous;
}

// True if `writer`, the run file of a checkpoint elsewhere, is that of the run in this folder, whose checkpoints were
// moved away.
bool were_moved(const RunConfig& writer, const RunConfig& previous, const std::string& folder) {
  return run_folder_of(writer) == run_folder_of(previous) &&
         checkpoint_folder_of(writer) == checkpoint_folder_of(previous) &&
         ckpt::list_steps(checkpoint_folder_of(previous)).empty() && ckpt::list_steps(folder + "/checkpoints").empty();
}

// UsageError if checkpoint.dir, outside the run folder, contains checkpoints that the run in this folder did not write:
// the run would resume from them and delete them. The run has written them if its run.toml has this checkpoint.dir, or,
// if they were moved, if they were written with the folders of its run.toml.
void check_checkpoints_are_own(const RunConfig& config) {
  const std::string folder = run_folder_of(config), checkpoints = checkpoint_folder_of(config);
  std::error_code error;
  if (fs::equivalent(fs::path(checkpoints).parent_path(), folder, error) || ckpt::list_steps(checkpoints).empty())
    return;
  std::optional<RunConfig> previous, writer;
  try {
    if (is_there(folder + "/run.toml")) previous = read_run_toml(folder + "/run.toml");
    if (previous && (previous->checkpoint.dir == config.checkpoint.dir ||
                     fs::equivalent(checkpoint_folder_of(*previous), checkpoints, error)))
      return;
    if (const auto newest = ckpt::newest_complete(checkpoints)) writer = read_manifest(*newest);
  } catch (const Error&) {  // an unreadable file does not show that the checkpoints are this run's
  }
  if (previous && writer && were_moved(*writer, *previous, folder)) return;
  throw UsageError(
      fmt::format("checkpoint.dir = {}: got checkpoints of another run{}; expected a new folder, or the checkpoints of "
                  "the run in {}. Set another checkpoint.dir, or start from these checkpoints with --resume {}",
                  config.checkpoint.dir, writer ? fmt::format(" (run folder {})", run_folder_of(*writer)) : "", folder,
                  checkpoints));
}

constexpr const char* kFolderOptions =
    "--run-dir DIR trains in another folder; --resume none starts from scratch here (the previous run moves to "
    "before-N); "
    "--continue-with-changes continues with the new values and records them";

}  // namespace

std::optional<RunConfig> checkpoint_run_config(const Json& state, const std::string& name) {
  const auto run = state.find("run");
  if (run == state.end() || !run->is_string()) return std::nullopt;
  return parse_resolved_config(run->get<std::string>(), name, UnknownKeys::skip);
}

std::string KeyChange::text() const {
  return fmt::format("{}: {} → {}", key, before, now);
}

RunChanges diff_run_configs(const RunConfig& before, const RunConfig& now) {
  RunConfig old_config = normalised(before), new_config = normalised(now);
  const std::vector<Field> olds = fields(old_config), news = fields(new_config);
  RunChanges changes;
  // Older versions stored no identity, so there may be nothing to compare. model.init is not compared: it was read at
  // the start of the run and may have changed since.
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
  if (config.checkpoint.resume == "auto" && !config.checkpoint.dir.empty()) check_checkpoints_are_own(config);
  const std::string folder = run_folder_of(config);
  std::optional<RunConfig> previous;
  RunChanges changes;
  try {
    previous = previous_run(config);
    if (previous) changes = diff_run_configs(*previous, config);
  } catch (const Error& error) {
    if (accepted) return {};
    throw UsageError(fmt::format("{}: the run file of the run in this folder cannot be read: {}\n{}", folder,
                                 error.what(), kFolderOptions));
  }
  if ((changes.result.empty() && changes.files.empty()) || accepted) return changes;
  std::string lines;
  for (const auto* some : {&changes.result, &changes.files})
    for (const KeyChange& change : *some) lines += fmt::format("\n  {}", change.text());
  if (changes.result.empty())
    throw IoError(fmt::format("{}: contains a run that read other data:{}\n{}", folder, lines, kFolderOptions));
  const std::string& made_from = previous->run.file;
  const bool same_file = made_from.empty() || made_from == config.run.file;
  throw UsageError(
      fmt::format("{}: contains a run with other values of keys that change the result{}:{}\n{}", folder,
                  same_file ? "" : fmt::format(" (run file {}, this one is {})", made_from, config.run.file), lines,
                  kFolderOptions));
}

}  // namespace esp::train
