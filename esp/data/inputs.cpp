#include "esp/data/inputs.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <system_error>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/data/byte_stream.h"
#include "esp/data/content_type.h"
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

bool is_token_file(std::string_view path) {
  return has_extension(path, ".bin") || has_extension(path, ".idx");
}

InputKind token_kind(const std::string& path) {
  const std::string stem = path.substr(0, path.size() - 4);
  const bool index = has_extension(path, ".idx");
  if (index || fs::exists(stem + ".idx") || fs::exists(stem + ".IDX")) {
    if (!path.ends_with(".idx") && !(path.ends_with(".bin") && fs::exists(stem + ".idx")))
      throw IoError(
          fmt::format("{}: got upper-case letters in the extensions of a Megatron pair; expected {}.idx and "
                      "{}.bin. Rename both files",
                      path, stem, stem));
    return InputKind::megatron;
  }
  std::string head = obs::open_input_file(path).read(0, kLlmcHeaderBytes);
  if (obs::is_git_lfs_pointer(head)) require_token_ids(path);
  return looks_like_llmc(std::as_bytes(std::span(head))) ? InputKind::llmc : InputKind::bin;
}

// (device, inode): identifies a file under any name.
using FileId = std::pair<dev_t, ino_t>;
FileId file_id(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) throw IoError(fmt::format("cannot stat {}: {}", path, errno_text(errno)));
  return {info.st_dev, info.st_ino};
}

enum class JsonShape { lines, array, one_value };

// Classifies JSON by its first character and its first line. The records are parsed later, when they are read.
JsonShape json_shape(std::string_view head) {
  if (head.starts_with(kByteOrderMark)) head.remove_prefix(kByteOrderMark.size());
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (first == head.npos) return JsonShape::lines;
  head.remove_prefix(first);
  if (head[0] == '[') return JsonShape::array;
  if (head[0] != '{') return JsonShape::one_value;
  const size_t end = head.find('\n');
  if (end == head.npos) return JsonShape::lines;  // no line end in the head: treat the file as JSON lines
  return nlohmann::json::accept(head.substr(0, end)) ? JsonShape::lines : JsonShape::one_value;
}

// True for an object with a list of objects under a key, such as {"data": [{…}, …]}. `head` may be cut off.
bool has_record_list(std::string_view head) {
  using Event = nlohmann::json::parse_event_t;
  bool in_list = false, found = false;
  const auto visit = [&](int depth, Event event, const nlohmann::json&) {
    const bool starts = event == Event::array_start || event == Event::object_start;
    if (starts && depth == 1) in_list = event == Event::array_start;
    if (starts && depth == 2 && in_list && event == Event::object_start) found = true;
    return true;
  };
  std::ignore = nlohmann::json::parse(head, visit, false);
  return found;
}

class InputFinder {
 public:
  InputFinder(std::string_view format, const Log& log)
      : row_(format == "auto" || format == "records" ? nullptr : &find_row("data format", kKinds, format)),
        records_(format == "records"),
        log_(log) {}

  void add_named(const std::string& name) {
    std::error_code ignored;
    if (fs::is_directory(name, ignored)) return add_folder(name);
    const InputKind kind = kind_of_name(name);
    if (!holds_text(kind)) return push(name, row_ ? kind : token_kind(name));
    const ContentType content = detect_content_type(name);
    require_text(content, name);
    warn_about(content, name, kind);
    push(name, kind_by_content(name, kind, content, false));
  }

  std::vector<Input> finish() {
    std::set<FileId> seen;
    for (const Input& input : inputs_)
      if (input.kind != InputKind::megatron && !seen.insert(file_id(input.path)).second)
        log_.warn("{} is given more than once; it is read each time", input.path);
    return std::move(inputs_);
  }

 private:
  struct Skipped {
    std::string path, what;
  };

  void push(std::string path, InputKind kind) {
    Input input{std::move(path), kind};
    // A .bin/.idx pair is one input, whichever of the two files was found.
    if (kind == InputKind::megatron && is_token_file(input.path)) input.path.resize(input.path.size() - 4);
    if (kind == InputKind::megatron && std::find(inputs_.begin(), inputs_.end(), input) != inputs_.end()) return;
    inputs_.push_back(std::move(input));
  }

  // Decides by the name alone. For a .json file the content decides later.
  InputKind kind_of_name(std::string_view path) const {
    if (row_) return row_->kind;
    if (!records_ && is_token_file(path)) return InputKind::bin;
    if (compression_of(path) != Compression::none) path = path.substr(0, path.rfind('.'));
    if (has_extension(path, ".csv")) return InputKind::csv;
    if (has_extension(path, ".tsv")) return InputKind::tsv;
    if (has_extension(path, ".json")) return InputKind::json;
    const bool lines = has_extension(path, ".jsonl") || has_extension(path, ".ndjson");
    return records_ || lines ? InputKind::jsonl : InputKind::text;
  }

  InputKind kind_by_content(const std::string& path, InputKind kind, const ContentType& content, bool in_folder) const {
    if (row_ || (kind != InputKind::json && kind != InputKind::jsonl)) return kind;
    const JsonShape shape = json_shape(content.head);
    if (shape == JsonShape::array) return InputKind::json;
    if (kind == InputKind::jsonl || shape == JsonShape::lines) return InputKind::jsonl;
    if (in_folder && !records_ && !has_record_list(content.head)) return InputKind::text;
    throw IoError(
        fmt::format("{}: got one JSON value over several lines; expected one object per line, or one array of objects. "
                    "If its records "
                    "are a list under a key: jq -c '.KEY[]' {} > {}l",
                    path, path, path));
  }

  void warn_about(const ContentType& content, const std::string& path, InputKind kind) const {
    if (kind != InputKind::text) return;
    if (content.invalid_bytes > 0) log_.warn("{}", describe_invalid_bytes(content, path));
    if (!row_ && content.head.starts_with("{\"") && json_shape(content.head) == JsonShape::lines)
      log_.warn(
          "{}: its lines are JSON, but its name says text; it is read as text. Name it .jsonl to read its records",
          path);
  }

  // Finds every file below the folder, unsorted.
  void walk(const std::string& folder, std::set<FileId>& seen, std::vector<std::string>& found) {
    if (!seen.insert(file_id(folder)).second) return;
    try {
      reject_saved_dataset(folder);
      reject_model_folder(folder);
      for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        if (entry.path().filename().string().starts_with(".")) continue;
        const std::string path = entry.path().string();
        std::error_code failed;
        const fs::file_status status = entry.status(failed);
        if (fs::is_directory(status) && is_run_folder(path)) {
          log_.warn("{}: a run folder below a folder of the corpus; its files are not read", path);
        } else if (fs::is_directory(status)) {
          walk(path, seen, found);
        } else if (fs::is_regular_file(status)) {
          found.push_back(path);
        } else {
          skipped_.push_back({path, fs::exists(status) ? "not a regular file" : "a broken symbolic link"});
        }
      }
    } catch (const fs::filesystem_error& error) {
      throw IoError(fmt::format("cannot list the folder {}: {}", folder, error.code().message()));
    }
  }

  static void reject_saved_dataset(const std::string& folder) {
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

  // True for a folder that a run writes to: it contains run.lock, or run.toml beside metrics.jsonl or checkpoints. Such
  // a folder below the corpus is skipped, because its files change while the run reads them.
  static bool is_run_folder(const std::string& folder) {
    const auto has = [&](const char* name) { return fs::exists(folder + "/" + name); };
    return has("run.lock") || (has("run.toml") && (has("metrics.jsonl") || has("checkpoints")));
  }

  // Rejects a named folder that is a run folder, and any folder that contains model weights: the path is probably
  // wrong.
  static void reject_model_folder(const std::string& folder) {
    const auto has = [&](std::string_view name) { return fs::exists(fmt::format("{}/{}", folder, name)); };
    const fs::directory_iterator entries(folder);
    const bool weights = std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
      return entry.path().extension() == ".safetensors" || entry.path().filename() == "pytorch_model.bin";
    });
    const char* what = is_run_folder(folder)             ? "a run folder"
                       : weights && has("manifest.json") ? "a checkpoint"
                       : weights && has("config.json")   ? "a Hugging Face model"
                                                         : nullptr;
    if (what)
      throw IoError(
          fmt::format("{}: got {}; expected text, JSON lines, CSV or token files. Name only the folders and "
                      "files of the corpus",
                      folder, what));
  }

  void add_folder(const std::string& folder) {
    skipped_.clear();
    std::set<FileId> seen;
    std::vector<std::string> found;
    walk(folder, seen, found);
    std::sort(found.begin(), found.end());
    if (!records_ && std::any_of(found.begin(), found.end(), is_token_file)) {
      keep_token_files(folder, found);
      skipped_.clear();
    }
    const size_t before = inputs_.size();
    std::string fix;
    for (const std::string& path : found) {
      const InputKind kind = kind_of_name(path);
      if (!holds_text(kind)) {
        push(path, row_ ? kind : token_kind(path));
        continue;
      }
      ContentType content = detect_content_type(path);
      if (content.dataset) {
        content.fix += " To leave it out, name the other files in place of the folder.";
        require_text(content, path);
      }
      if (!content.is_text()) {
        if (fix.empty()) fix = content.fix;
        skipped_.push_back({path, content.what});
        continue;
      }
      warn_about(content, path, kind);
      push(path, kind_by_content(path, kind, content, true));
    }
    const std::string names = skipped_names();
    if (inputs_.size() == before)
      throw IoError(names.empty() ? fmt::format("{}: got a folder without files; expected text below it", folder)
                                  : fmt::format("{}: got no text below it, but {}. {}", folder, names, fix));
    if (!names.empty())
      log_.warn("{}: {} of {} files are not text and are not read: {}", folder, skipped_.size(),
                inputs_.size() - before + skipped_.size(), names);
  }

  // Warns about the files that are not read, except NAME.json, which describes NAME.bin or NAME_000000.bin.
  void keep_token_files(const std::string& folder, std::vector<std::string>& found) const {
    std::vector<std::string> tokens, others;
    std::partition_copy(found.begin(), found.end(), std::back_inserter(tokens), std::back_inserter(others),
                        is_token_file);
    std::erase_if(others, [&](std::string_view path) {
      if (!path.ends_with(".json")) return false;
      path.remove_suffix(std::string_view(".json").size());
      const auto first = std::lower_bound(tokens.begin(), tokens.end(), path);
      return first != tokens.end() && first->starts_with(path);
    });
    if (!others.empty())
      log_.warn(
          "{}: {} of {} files are not read, such as {}: in a folder with token files (.bin, .idx), only the token "
          "files are read. Name the other files to read them too",
          folder, others.size(), found.size(), others[0]);
    found = std::move(tokens);
  }

  std::string skipped_names() {
    std::sort(skipped_.begin(), skipped_.end(), [](const Skipped& a, const Skipped& b) { return a.path < b.path; });
    std::vector<std::string> shown;
    for (const Skipped& one : skipped_)
      if (shown.size() < kNamesInWarnings) shown.push_back(fmt::format("{} ({})", one.path, one.what));
    if (skipped_.size() > shown.size()) shown.push_back(fmt::format("{} more", skipped_.size() - shown.size()));
    return fmt::format("{}", fmt::join(shown, ", "));
  }

  const KindRow* row_;  // null: decide by name and content
  bool records_;
  Log log_;
  std::vector<Input> inputs_;
  std::vector<Skipped> skipped_;  // skipped files of the current folder
};

// Compares samples of two files of equal size; small files are compared completely.
bool have_equal_samples(const std::string& a, const std::string& b, uint64_t size) {
  constexpr uint64_t kSamples = 32, kSampleBytes = uint64_t{32} << 10;
  const obs::File one(a, O_RDONLY), other(b, O_RDONLY);
  const uint64_t step = std::max(kSampleBytes, size / kSamples);
  for (uint64_t at = 0; at < size; at += step)
    if (one.read(at, kSampleBytes) != other.read(at, kSampleBytes)) return false;
  return true;
}

// Says why a path cannot be opened: an empty path, `~`, a broken link, a loop of links, or no such file.
std::string describe_missing_path(const std::string& path) {
  if (path.empty()) return "got an empty path; expected a file, a folder or a glob";
  std::string text = "no such file or folder: " + path;
  std::error_code failed, no_link;
  std::ignore = fs::status(path, failed);
  if (path.starts_with("~")) return text + ". ~ is not expanded here. Write the path of the home folder";
  if (failed == std::errc::too_many_symbolic_link_levels)
    return text + " (a loop of symbolic links). Link to the file itself";
  if (const fs::path target = fs::read_symlink(path, no_link); !no_link)
    return fmt::format("{} (a broken symbolic link to {}). Restore its target, or name the file itself", text,
                       target.string());
  return failed && failed != std::errc::no_such_file_or_directory && failed != std::errc::not_a_directory
             ? fmt::format("cannot open {}: {}", path, failed.message())
             : text;
}

std::vector<std::string> expand_glob(const std::string& pattern) {
  glob_t result{};
  // A folder that does not exist matches nothing. A folder that cannot be read is an error, because it may contain
  // matches.
  const auto stops = [](const char*, int error) { return error != ENOENT && error != ENOTDIR ? 1 : 0; };
  int code = glob(pattern.c_str(), 0, stops, &result);
  std::vector<std::string> found(result.gl_pathv, result.gl_pathv + result.gl_pathc);
  globfree(&result);
  if (code != 0 && code != GLOB_NOMATCH)
    throw IoError(fmt::format("cannot match {}: a folder cannot be read", pattern));
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
  InputFinder finder(format, log);
  bool any = false;
  for (const std::string& path : paths) {
    std::error_code ignored;
    // An existing path is taken literally, even if it contains glob characters.
    bool pattern = !fs::exists(path, ignored) && path.find_first_of("*?[") != path.npos;
    // Megatron-LM users name a .bin/.idx pair without an extension.
    bool pair = !pattern && !fs::exists(path, ignored) && fs::exists(path + ".idx", ignored);
    std::vector<std::string> named = pattern ? expand_glob(path) : std::vector{pair ? path + ".idx" : path};
    if (named.empty())
      throw IoError(fmt::format("no file matches {}{}", path,
                                path.starts_with("~") ? ". ~ is not expanded here. Write the home folder" : ""));
    for (const std::string& name : named) {
      if (!fs::exists(name, ignored)) throw IoError(describe_missing_path(name));
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
        std::any_of(first, last, [&](const auto& one) { return have_equal_samples(one.second, file, one.first); }))
      common.push_back(input.path);
  }
  return common;
}

}  // namespace esp::data
