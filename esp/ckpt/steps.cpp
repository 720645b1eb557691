#include "esp/ckpt/steps.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/manifest.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "step-";

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && stop == end && step >= 0 ? std::optional(step) : std::nullopt;
}

bool complete(const std::string& path) {
  try {
    const std::string manifest_path = path + "/" + kManifestName;
    const Manifest manifest = parse_manifest(obs::read_whole_file(manifest_path, kMaxJsonBytes), manifest_path);
    for (const auto& [name, record] : manifest.files) {
      std::error_code error;
      if (fs::file_size(path + "/" + name, error) != record.bytes || error) return false;
    }
    return true;
  } catch (const IoError&) {
    return false;
  }
}

void remove_beginning_with(const std::string& dir, std::string_view prefix) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error))
    if (entry.path().filename().string().starts_with(prefix)) fs::remove_all(entry.path(), error);
}

}  // namespace

std::string step_name(int64_t step) {
  return fmt::format("{}{}", kPrefix, step);
}

std::vector<std::pair<int64_t, std::string>> steps_under(const std::string& dir) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error))
    if (const auto step = step_of(entry.path().filename().string())) found.emplace_back(*step, entry.path().string());
  std::sort(found.rbegin(), found.rend());
  return found;
}

void remove_old(const std::string& dir, int keep, const std::string& written) {
  if (keep == 0) return;
  int kept = 1;
  for (const auto& [step, path] : steps_under(dir)) {
    if (path != written && complete(path) && ++kept > keep) {
      std::error_code error;
      fs::remove(path + "/" + kManifestName, error);  // first: from now on it is incomplete
      fs::remove_all(path, error);
    }
  }
}

void clear_for_writing(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) throw IoError(fmt::format("checkpoint folder {}: {}", dir, error.message()));
  remove_beginning_with(dir, kPartialPrefix);
}

void remove_failed(const std::string& dir) {
  remove_beginning_with(dir, kFailedPrefix);
}

void put_in_place(const std::string& dir, const std::string& folder, const std::string& path) {
  sync_folder(folder);
  // The same step once more, after a resume: the old one steps aside, and comes back should the new one fail.
  const std::string aside = fmt::format("{}/{}old-{}", dir, kPartialPrefix, fs::path(path).filename().string());
  const bool replaces = std::rename(path.c_str(), aside.c_str()) == 0;
  if (std::rename(folder.c_str(), path.c_str()) != 0) {
    const std::string why = errno_text(errno);
    if (replaces) std::rename(aside.c_str(), path.c_str());
    throw IoError(fmt::format("{} cannot become {}: {}", folder, path, why));
  }
  sync_folder(dir);
  std::error_code error;
  if (replaces) fs::remove_all(aside, error);
}

void sync_folder(const std::string& path) {
  obs::File(path, O_RDONLY | O_DIRECTORY).sync();
}

std::optional<std::string> newest_complete(const std::string& dir, std::vector<std::string>* skipped) {
  for (const auto& [step, path] : steps_under(dir)) {
    if (complete(path)) return path;
    if (skipped) skipped->push_back(path);
  }
  return std::nullopt;
}

}  // namespace esp::ckpt
