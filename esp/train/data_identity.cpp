#include "esp/train/data_identity.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/ckpt/hf_folder.h"
#include "esp/ckpt/manifest.h"
#include "esp/data/file_digest.h"
#include "esp/data/inputs.h"
#include "esp/data/tokenizer/tokenizer.h"
#include "esp/obs/file.h"
#include "esp/train/data_pipeline.h"
#include "esp/train/trained_model.h"

namespace esp::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kInit = "model.init";
constexpr size_t kMaxNamesInChange = 8;

std::vector<std::string> paths_of(const std::vector<std::string>& named, const RunConfig& config) {
  const std::string objective = objective_name(config);
  if (objective == "synthetic" || named.empty()) return {};
  std::vector<std::string> paths;
  const bool records = objective == "pairs" || objective == "classification";
  for (const data::Input& input : data::find_inputs(named, records ? "records" : "auto", Log(LogLevel::off, -1))) {
    if (input.kind == data::InputKind::megatron) {
      paths.insert(paths.end(), {input.path + ".idx", input.path + ".bin"});
      continue;
    }
    paths.push_back(input.path);
    std::error_code error;  // the .json file of a raw .bin file has its token width, so it is part of the data
    if (input.kind == data::InputKind::bin && fs::exists(input.path + ".json", error))
      paths.push_back(input.path + ".json");
  }
  return paths;
}

// The files that identify model.init. For a Hugging Face folder these are the weights and settings files; for a
// checkpoint it is the manifest, which contains the checksums of all other files.
std::vector<std::string> init_files(const std::string& init) {
  if (init.empty()) return {};
  if (!ckpt::is_hf_folder(init)) return {fmt::format("{}/{}", resolve_checkpoint(init), ckpt::kManifestName)};
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(init))
    if (const std::string ending = entry.path().extension().string(); ending == ".safetensors" || ending == ".json")
      paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// For a key with a name or a path as its value: returns the path if that file exists, else nothing.
std::vector<std::string> where_file(const std::string& value) {
  std::error_code error;
  return fs::is_regular_file(value, error) ? std::vector{value} : std::vector<std::string>();
}

uint64_t mix_hash(uint64_t hash, uint64_t next) {
  hash = (hash ^ next) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

template <typename F>
void add_lines(std::vector<std::string>& lines, std::string_view key, F&& find) {
  try {
    const std::vector<std::string> paths = find();
    const std::vector<data::FileDigest> digests = data::digest_files(paths);
    const size_t each = (paths.size() + kMaxIdentityLines - 1) / kMaxIdentityLines;
    for (size_t at = 0; at < paths.size(); at += each) {
      const size_t end = std::min(at + each, paths.size());
      data::FileDigest all = digests[at];
      for (size_t i = at + 1; i < end; ++i) {
        all.hash = mix_hash(mix_hash(all.hash, digests[i].bytes), digests[i].hash);
        all.bytes += digests[i].bytes;
      }
      const std::string more =
          end - at == 1 ? "" : fmt::format(" to {} ({} files)", fs::path(paths[end - 1]).filename().string(), end - at);
      lines.push_back(fmt::format("{} {} {:016x} {}{}", key, all.bytes, all.hash, paths[at], more));
    }
  } catch (const std::exception& error) {  // not thrown here: the reader of the file reports the error
    std::string reason = error.what();
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    lines.push_back(fmt::format("{} - - {}", key, reason));
  }
}

}  // namespace

std::vector<std::string> data_identity(const RunConfig& config) {
  std::vector<std::string> lines;
  add_lines(lines, "data.train", [&] { return paths_of(config.data.train, config); });
  add_lines(lines, "data.val", [&] { return paths_of(config.data.val, config); });
  add_lines(lines, "data.tokenizer", [&] {
    return objective_name(config) == "synthetic" ? std::vector<std::string>()
                                                 : data::tokenizer_files(config.data.tokenizer);
  });
  add_lines(lines, kInit, [&] { return init_files(config.model.init); });
  add_lines(lines, "parallel.schedule", [&] { return where_file(config.parallel.schedule); });
  add_lines(lines, "sync.topology", [&] { return where_file(config.sync.topology); });
  return lines;
}

IdentityLine parse_identity_line(const std::string& line) {
  const size_t key = line.find(' '), bytes = line.find(' ', key + 1), hash = line.find(' ', bytes + 1);
  if (key == line.npos || bytes == line.npos || hash == line.npos) return {line, "", ""};
  const std::string size = line.substr(key + 1, bytes - key - 1), path = line.substr(hash + 1);
  if (size == "-") return {line.substr(0, key), path, ""};
  return {line.substr(0, key), fmt::format("{} bytes, hash {}", size, line.substr(bytes + 1, hash - bytes - 1)), path};
}

std::vector<IdentityChange> identity_changes(const std::vector<std::string>& before,
                                             const std::vector<std::string>& now) {
  std::vector<IdentityLine> olds, news;
  for (const std::string& line : before) olds.push_back(parse_identity_line(line));
  for (const std::string& line : now) news.push_back(parse_identity_line(line));
  std::vector<std::string> keys;
  for (const auto* lines : {&olds, &news})
    for (const IdentityLine& line : *lines)
      if (std::find(keys.begin(), keys.end(), line.key) == keys.end()) keys.push_back(line.key);
  std::vector<IdentityChange> changes;
  for (const std::string& key : keys) {
    std::vector<const IdentityLine*> was, is;
    for (const IdentityLine& line : olds)
      if (line.key == key) was.push_back(&line);
    for (const IdentityLine& line : news)
      if (line.key == key) is.push_back(&line);
    for (size_t i = 0; i < std::max(was.size(), is.size()); ++i) {
      const IdentityLine* one = i < was.size() ? was[i] : nullptr;
      const IdentityLine* other = i < is.size() ? is[i] : nullptr;
      if (one && other && one->content == other->content) continue;
      changes.push_back({(other && !other->path.empty() ? *other
                          : one                         ? *one
                                                        : *other)
                             .subject(),
                         one ? one->content : "no file", other ? other->content : "no file"});
    }
  }
  return changes;
}

void check_data_unchanged(const RunConfig& config) {
  if (config.data.identity.empty()) return;
  std::vector<std::string> lines;
  for (const IdentityChange& change : identity_changes(config.data.identity, data_identity(config)))
    if (!change.subject.starts_with(kInit) && lines.size() < kMaxNamesInChange)
      lines.push_back(fmt::format("\n  {}: got {}; expected {}", change.subject, change.now, change.before));
  if (lines.empty()) return;
  throw obs::FileChanged(fmt::format(
      "data changed since the run began:{}\nRestore the files and start the run again: it resumes from its last "
      "checkpoint. --continue-with-changes continues with the new content, --run-dir DIR trains in another folder",
      fmt::join(lines, "")));
}

}  // namespace esp::train
