#include "esp/data/inputs.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/data/byte_stream.h"
#include "esp/data/content.h"
#include "esp/data/token_file.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNamesInWarnings = 6;

struct KindRow {
  std::string_view name;
  InputKind kind;
};
constexpr KindRow kKinds[] = {{"text", InputKind::text}, {"jsonl", InputKind::jsonl},      {"json", InputKind::json},
                              {"csv", InputKind::csv},   {"tsv", InputKind::tsv},          {"bin", InputKind::bin},
                              {"llmc", InputKind::llmc}, {"megatron", InputKind::megatron}};

bool ends_with_any(std::string_view path, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view e) { return path.ends_with(e); });
}

bool is_token_file(std::string_view path) {
  return ends_with_any(path, {".bin", ".idx"});
}

InputKind token_kind(const std::string& path) {
  if (path.ends_with(".idx") || fs::exists(path.substr(0, path.size() - 4) + ".idx")) return InputKind::megatron;
  std::string head = obs::File(path, O_RDONLY).read(0, kLlmcHeaderBytes);
  if (head.starts_with("version https://git-lfs")) require_token_ids(path);
  return looks_like_llmc(std::as_bytes(std::span(head))) ? InputKind::llmc : InputKind::bin;
}

// A device and a number there: the same file under any name.
using FileId = std::pair<dev_t, ino_t>;
FileId file_id(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) throw IoError(fmt::format("cannot stat {}: {}", path, errno_text(errno)));
  return {info.st_dev, info.st_ino};
}

enum class JsonShape { lines, array, one_value };

// An array's elements and a first line's object are parsed when they are read; here only their beginnings count.
JsonShape json_shape(std::string_view head) {
  if (head.starts_with(kByteOrderMark)) head.remove_prefix(kByteOrderMark.size());
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (first == head.npos) return JsonShape::lines;
  head.remove_prefix(first);
  if (head[0] == '[') return JsonShape::array;
  if (head[0] != '{') return JsonShape::one_value;
  const size_t end = head.find('\n');
  if (end == head.npos) return JsonShape::lines;  // one line, as far as the head goes
  return nlohmann::json::accept(head.substr(0, end)) ? JsonShape::lines : JsonShape::one_value;
}

class Finder {
 public:
  Finder(std::string_view format, const Log& log)
      : row_(format == "auto" || format == "records" ? nullptr : &find_row("data format", kKinds, format)),
        records_(format == "records"),
        log_(log) {}

  void add_named(const std::string& name) {
    std::error_code ignored;
    if (fs::is_directory(name, ignored)) return add_folder(name);
    const InputKind kind = kind_of_name(name);
    if (!holds_text(kind)) return push(name, row_ ? kind : token_kind(name));
    const Content content = examine_file(name);
    require_text(content, name);
    warn_of(content, name, kind);
    push(name, by_content(name, kind, content, false));
  }

  std::vector<Input> finish() {
    std::set<FileId> seen;
    for (const Input& input : inputs_)
      if (input.kind != InputKind::megatron && !seen.insert(file_id(input.path)).second)
        log_.warn("{} is named more than once; it is read each time", input.path);
    return std::move(inputs_);
  }

 private:
  struct Skipped {
    std::string path, what;
  };

  void push(std::string path, InputKind kind) {
    Input input{std::move(path), kind};
    // A pair is one input, by whichever of its files it was found.
    if (kind == InputKind::megatron && is_token_file(input.path)) input.path.resize(input.path.size() - 4);
    if (kind == InputKind::megatron && std::find(inputs_.begin(), inputs_.end(), input) != inputs_.end()) return;
    inputs_.push_back(std::move(input));
  }

  // By the name alone. The content of a .json file decides later what it is.
  InputKind kind_of_name(std::string_view path) const {
    if (row_) return row_->kind;
    if (!records_ && is_token_file(path)) return InputKind::bin;
    if (compression_of(path) != Compression::none) path = path.substr(0, path.rfind('.'));
    if (path.ends_with(".csv")) return InputKind::csv;
    if (path.ends_with(".tsv")) return InputKind::tsv;
    if (path.ends_with(".json")) return InputKind::json;
    return records_ || ends_with_any(path, {".jsonl", ".ndjson"}) ? InputKind::jsonl : InputKind::text;
  }

  InputKind by_content(const std::string& path, InputKind kind, const Content& content, bool in_folder) const {
    if (row_ || (kind != InputKind::json && kind != InputKind::jsonl)) return kind;
    const JsonShape shape = json_shape(content.head);
    if (shape == JsonShape::array) return InputKind::json;
    if (kind == InputKind::jsonl || shape == JsonShape::lines) return InputKind::jsonl;
    if (in_folder && !records_) return InputKind::text;
    throw IoError(
        fmt::format("{}: got one JSON value over several lines; expected one object per line, or one array of objects. "
                    "If its records "
                    "are a list under a key: jq -c '.KEY[]' {} > {}l",
                    path, path, path));
  }

  void warn_of(const Content& content, const std::string& path, InputKind kind) const {
    if (kind != InputKind::text) return;
    if (content.stray_bytes > 0) log_.warn("{}", describe_stray(content, path));
    if (!row_ && content.head.starts_with("{\"") && json_shape(content.head) == JsonShape::lines)
      log_.warn(
          "{}: its lines are JSON, but its name says text; it is read as text. Name it .jsonl to read its records",
          path);
  }

  // Every file below, in no order.
  void walk(const std::string& folder, std::set<FileId>& seen, std::vector<std::string>& found) {
    if (!seen.insert(file_id(folder)).second) return;
    try {
      refuse_saved_dataset(folder);
      refuse_model(folder);
      for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        if (entry.path().filename().string().starts_with(".")) continue;
        const std::string path = entry.path().string();
        std::error_code failed;
        const fs::file_status status = entry.status(failed);
        if (fs::is_directory(status)) {
          walk(path, seen, found);
        } else if (fs::is_regular_file(status)) {
          found.push_back(path);
        } else {
          skipped_.push_back({path, fs::exists(status) ? "not a regular file" : "a link to nothing"});
        }
      }
    } catch (const fs::filesystem_error& error) {
      throw IoError(fmt::format("{}: cannot be listed: {}", folder, error.code().message()));
    }
  }

  static void refuse_saved_dataset(const std::string& folder) {
    const auto has = [&](const char* name) { return fs::exists(folder + "/" + name); };
    const bool splits = has("dataset_dict.json");
    if (!splits && !(has("dataset_info.json") && has("state.json"))) return;
    std::string stem = folder;
    while (stem.size() > 1 && stem.ends_with('/')) stem.pop_back();
    throw IoError(fmt::format(
        "{}: got a folder saved by Hugging Face datasets; expected text, JSON lines, CSV or token files. Convert "
        "it: python3 -c \"from datasets import load_from_disk; load_from_disk('{}'){}.to_json('{}.jsonl')\"",
        folder, folder, splits ? "['train']" : "", stem));
  }

  // A corpus has no weights in it: a path has been confused, or runs are made below the corpus.
  static void refuse_model(const std::string& folder) {
    const auto has = [&](std::string_view name) { return fs::exists(fmt::format("{}/{}", folder, name)); };
    const fs::directory_iterator entries(folder);
    const bool weights = std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
      return entry.path().extension() == ".safetensors" || entry.path().filename() == "pytorch_model.bin";
    });
    const char* what = has("run.toml") && (has("metrics.jsonl") || has("checkpoints")) ? "a run folder"
                       : weights && has("manifest.json")                               ? "a checkpoint"
                       : weights && has("config.json")                                 ? "a Hugging Face model"
                                                                                       : nullptr;
    if (what)
      throw IoError(
          fmt::format("{}: got {}; expected text, JSON lines, CSV or token files. Name the folders and files "
                      "of the corpus alone",
                      folder, what));
  }

  void add_folder(const std::string& folder) {
    skipped_.clear();
    std::set<FileId> seen;
    std::vector<std::string> found;
    walk(folder, seen, found);
    // What stands beside token files (their .json, a tokenizer) is about them, not part of the corpus.
    if (!records_ && std::any_of(found.begin(), found.end(), is_token_file)) {
      std::erase_if(found, [](const std::string& path) { return !is_token_file(path); });
      skipped_.clear();
    }
    std::sort(found.begin(), found.end());
    const size_t before = inputs_.size();
    std::string fix;
    for (const std::string& path : found) {
      const InputKind kind = kind_of_name(path);
      if (!holds_text(kind)) {
        push(path, row_ ? kind : token_kind(path));
        continue;
      }
      const Content content = examine_file(path);
      if (content.dataset) require_text(content, path);
      if (!content.is_text()) {
        if (fix.empty()) fix = content.fix;
        skipped_.push_back({path, content.what});
        continue;
      }
      warn_of(content, path, kind);
      push(path, by_content(path, kind, content, true));
    }
    const std::string names = skipped_names();
    if (inputs_.size() == before)
      throw IoError(names.empty() ? fmt::format("{}: got a folder without files; expected text below it", folder)
                                  : fmt::format("{}: got no text below it, but {}. {}", folder, names, fix));
    if (!names.empty())
      log_.warn("{}: {} of {} files are not text and are not read: {}", folder, skipped_.size(),
                inputs_.size() - before + skipped_.size(), names);
  }

  std::string skipped_names() {
    std::sort(skipped_.begin(), skipped_.end(), [](const Skipped& a, const Skipped& b) { return a.path < b.path; });
    std::vector<std::string> shown;
    for (const Skipped& one : skipped_)
      if (shown.size() < kNamesInWarnings) shown.push_back(fmt::format("{} ({})", one.path, one.what));
    if (skipped_.size() > shown.size()) shown.push_back(fmt::format("{} more", skipped_.size() - shown.size()));
    return fmt::format("{}", fmt::join(shown, ", "));
  }

  const KindRow* row_;  // null: by name and content
  bool records_;
  Log log_;
  std::vector<Input> inputs_;
  std::vector<Skipped> skipped_;  // of the folder at hand
};

// Two files of one size, compared in samples from beginning to end: small ones whole.
bool look_the_same(const std::string& a, const std::string& b, uint64_t size) {
  constexpr uint64_t kSamples = 32, kSampleBytes = uint64_t{32} << 10;
  const obs::File one(a, O_RDONLY), other(b, O_RDONLY);
  const uint64_t step = std::max(kSampleBytes, size / kSamples);
  for (uint64_t at = 0; at < size; at += step)
    if (one.read(at, kSampleBytes) != other.read(at, kSampleBytes)) return false;
  return true;
}

std::vector<std::string> matching(const std::string& pattern) {
  glob_t result{};
  // A folder that is not there matches nothing; one that cannot be read may hold what is meant.
  const auto stops = [](const char*, int error) { return error != ENOENT && error != ENOTDIR ? 1 : 0; };
  int code = glob(pattern.c_str(), 0, stops, &result);
  std::vector<std::string> found(result.gl_pathv, result.gl_pathv + result.gl_pathc);
  globfree(&result);
  if (code != 0 && code != GLOB_NOMATCH)
    throw IoError(fmt::format("cannot look for {}: a folder cannot be read", pattern));
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::string_view name_of(InputKind kind) {
  return kKinds[static_cast<size_t>(kind)].name;
}

bool holds_text(InputKind kind) {
  return kind < InputKind::bin;
}

std::vector<Input> find_inputs(const std::vector<std::string>& paths, std::string_view format, const Log& log) {
  Finder finder(format, log);
  bool any = false;
  for (const std::string& path : paths) {
    std::error_code ignored;
    // A name that exists is itself, whatever characters it has.
    bool pattern = !fs::exists(path, ignored) && path.find_first_of("*?[") != path.npos;
    // Megatron's users name the pair without an extension.
    bool pair = !pattern && !fs::exists(path, ignored) && fs::exists(path + ".idx", ignored);
    std::vector<std::string> named = pattern ? matching(path) : std::vector{pair ? path + ".idx" : path};
    if (named.empty()) throw IoError(fmt::format("no file matches {}", path));
    for (const std::string& name : named) {
      if (!fs::exists(name, ignored)) throw IoError(fmt::format("no such file or folder: {}", name));
      finder.add_named(name);
      any = true;
    }
  }
  if (!any) throw UsageError("no data: give files, folders or globs");
  return finder.finish();
}

std::vector<std::string> common_files(const std::vector<Input>& a, const std::vector<Input>& b) {
  const auto file_of = [](const Input& input) {
    return input.kind == InputKind::megatron ? input.path + ".bin" : input.path;
  };
  std::set<FileId> ids;
  std::multimap<uint64_t, std::string> by_size;
  for (const Input& input : a) {
    ids.insert(file_id(file_of(input)));
    by_size.emplace(fs::file_size(file_of(input)), file_of(input));
  }
  std::vector<std::string> common;
  for (const Input& input : b) {
    const std::string file = file_of(input);
    const auto [first, last] = by_size.equal_range(fs::file_size(file));
    if (ids.contains(file_id(file)) ||
        std::any_of(first, last, [&](const auto& one) { return look_the_same(one.second, file, one.first); }))
      common.push_back(input.path);
  }
  return common;
}

}  // namespace esp::data
