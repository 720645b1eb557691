#include "esp/data/inputs.h"

#include <fcntl.h>
#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/data/byte_stream.h"
#include "esp/data/token_file.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

namespace fs = std::filesystem;

struct KindRow {
  std::string_view name;
  InputKind kind;
};
constexpr KindRow kKinds[] = {{"text", InputKind::text},
                              {"jsonl", InputKind::jsonl},
                              {"bin", InputKind::bin},
                              {"llmc", InputKind::llmc},
                              {"megatron", InputKind::megatron}};

bool ends_with_any(std::string_view path, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view e) { return path.ends_with(e); });
}

bool is_token_file(std::string_view path) {
  return ends_with_any(path, {".bin", ".idx"});
}

InputKind kind_of(const std::string& path) {
  if (ends_with_any(
          path, {".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst", ".json.gz", ".json.zst"}))
    return InputKind::jsonl;
  if (!is_token_file(path)) return InputKind::text;
  if (path.ends_with(".idx") || fs::exists(path.substr(0, path.size() - 4) + ".idx")) return InputKind::megatron;
  std::string head = obs::File(path, O_RDONLY).read(0, kLlmcHeaderBytes);
  return looks_like_llmc(std::as_bytes(std::span(head))) ? InputKind::llmc : InputKind::bin;
}

bool is_binary(const std::string& path) {
  if (compression_of(path) != Compression::none || is_token_file(path)) return false;
  return obs::File(path, O_RDONLY).read(0, 4096).find('\0') != std::string::npos;
}

std::vector<std::string> below(const std::string& folder) {
  std::vector<std::string> found;
  try {
    for (auto at = fs::recursive_directory_iterator(folder); at != fs::recursive_directory_iterator(); ++at) {
      bool hidden = at->path().filename().string().starts_with(".");
      if (hidden && at->is_directory()) at.disable_recursion_pending();
      std::string path = at->path().string();
      if (!hidden && at->is_regular_file() && !is_binary(path)) found.push_back(path);
    }
  } catch (const fs::filesystem_error& error) {
    throw IoError(fmt::format("cannot look through {}: {}", folder, error.what()));
  }
  // What stands beside token files (their .json, a tokenizer) is about them, not part of the corpus.
  if (std::any_of(found.begin(), found.end(), is_token_file))
    std::erase_if(found, [](const std::string& path) { return !is_token_file(path); });
  std::sort(found.begin(), found.end());
  return found;
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

std::vector<Input> find_inputs(const std::vector<std::string>& paths, std::string_view format) {
  const KindRow* row = format == "auto" ? nullptr : &find_row("data format", kKinds, format);
  std::vector<std::string> files;
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
      std::vector<std::string> all = fs::is_directory(name, ignored) ? below(name) : std::vector{name};
      if (all.empty()) throw IoError(fmt::format("no text below {}", name));
      files.insert(files.end(), all.begin(), all.end());
    }
  }
  if (files.empty()) throw UsageError("no data: give files, folders or globs");
  std::vector<Input> inputs;
  for (const std::string& file : files) {
    Input input{file, row ? row->kind : kind_of(file)};
    // A pair is one input, by whichever of its files it was found.
    if (input.kind == InputKind::megatron && is_token_file(input.path)) input.path.resize(input.path.size() - 4);
    if (input.kind == InputKind::megatron && std::find(inputs.begin(), inputs.end(), input) != inputs.end()) continue;
    inputs.push_back(std::move(input));
  }
  return inputs;
}

}  // namespace esp::data
