#include "esp/ckpt/save_attempt.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/ckpt/regular_file.h"
#include "esp/ckpt/steps.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
constexpr const char* kParts = "/parts";
constexpr const char* kReason = "/reason.txt";
constexpr size_t kMaxReasonBytes = 64 << 10;
constexpr Duration kLongestPause = milliseconds(50), kStoppingWait = std::chrono::seconds(3);
constexpr Duration kMinSyncWait = std::chrono::seconds(30);

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator(); at.increment(error))
    names.insert(at->path().filename().string());
  return names;
}

// The token of the attempt that wrote this checkpoint; empty if unknown.
std::string attempt_of(const std::string& path) {
  try {
    const std::string manifest = path + "/" + kManifestName;
    return parse_manifest(read_regular_file(manifest, kMaxJsonBytes), manifest).attempt;
  } catch (const IoError&) {
    return {};
  }
}

std::string text_of(Duration duration) {
  return fmt::format("{} s", std::chrono::duration<double>(duration).count());
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool plain_token(const std::string& token) {
  return !token.empty() && token.size() <= 100 && std::all_of(token.begin(), token.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '_' || c == '-';
  });
}

}  // namespace

SaveAttempt::SaveAttempt(const std::string& dir, int64_t step, const SaveOptions& options)
    : dir_(dir),
      token_(options.token),
      name_(fmt::format("{}.{}", step_name(step), options.token)),
      path_(dir + "/" + step_name(step)),
      folder_(fmt::format("{}/{}{}", dir, kPartialPrefix, name_)),
      failed_(fmt::format("{}/{}{}", dir, kFailedPrefix, name_)),
      step_(step),
      rank_(options.rank),
      world_(options.world),
      timeout_(options.timeout),
      begin_timeout_(std::min(options.timeout, options.begin_timeout)),
      stopping_(options.stopping),
      peer_lost_(options.peer_lost),
      check_folder_(options.check_folder) {
  if (rank_ < 0 || rank_ >= world_)
    throw UsageError(fmt::format("checkpoint: got rank {} of {} ranks; expected 0 to {}", rank_, world_, world_ - 1));
  if (!plain_token(token_))
    throw UsageError(
        fmt::format("checkpoint token: got \"{}\"; expected 1 to 100 letters, digits, '.', '_' or '-', the same "
                    "on all {} ranks",
                    token_, world_));
}

bool SaveAttempt::wait_until(const std::function<bool()>& ready, Duration timeout) const {
  Deadline deadline = Deadline::after(timeout);
  bool shortened = false;
  Duration pause = milliseconds(1);
  while (!ready()) {
    if (deadline.passed()) return false;
    if (check_folder_) check_folder_();
    if (peer_lost_ && peer_lost_()) {
      // Rank 0 may have committed the checkpoint just before it was lost, so the condition is checked once more.
      if (ready()) return true;
      throw IoError("another rank failed during the save");
    }
    // On a read-only file system no rank can commit or abort, so the wait would never end.
    if (::access(dir_.c_str(), W_OK) != 0 && errno == EROFS)
      throw IoError(fmt::format("{}: {}", dir_, errno_text(EROFS)));
    if (!shortened && stopping_ && *stopping_) {
      deadline = deadline.earlier(kStoppingWait);
      shortened = true;
    }
    std::this_thread::sleep_for(std::min(pause, deadline.left()));
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

void SaveAttempt::begin() {
  if (rank_ == 0) {
    prepare_folder(dir_);
    if (state() == State::failed) throw IoError(reason());  // another rank timed out and aborted
    std::error_code error;
    fs::create_directory(folder_, error);
    begun_ = !error;
    if (!error) fs::create_directory(folder_ + kParts, error);
    if (error) throw IoError(fmt::format("{}: {}", folder_, error.message()));
    return;
  }
  State now = State::none;
  const auto made = [&] {
    now = state();
    return now == State::failed || (now == State::open && exists(folder_ + kParts));
  };
  if (!wait_until(made, begin_timeout_))
    throw IoError(fmt::format("rank 0 did not start the checkpoint within {}", text_of(begin_timeout_)));
  if (now == State::failed) throw IoError(reason());
  begun_ = true;
}

void SaveAttempt::submit(const PartialManifest& part) {
  sync_folder(folder_);
  // The partial manifest is this rank's last file. Once rank 0 sees it, rank 0 may commit, and the folder then has
  // another name.
  obs::write_whole_file(folder_ + kParts + "/" + partial_manifest_name(rank_), to_json(part), true);
}

PartialManifest SaveAttempt::read_partial(int rank) const {
  const std::string path = folder_ + kParts + "/" + partial_manifest_name(rank);
  PartialManifest part = parse_partial_manifest(read_regular_file(path, kMaxJsonBytes), path);
  if (part.rank != rank || part.world != world_ || part.manifest.step != step_ || part.manifest.attempt != token_)
    throw IoError(fmt::format("{}: got rank {} of {}, step {}, attempt {}; expected rank {} of {}, step {}, attempt {}",
                              path, part.rank, part.world, part.manifest.step, part.manifest.attempt, rank, world_,
                              step_, token_));
  for (const auto& [file, record] : part.manifest.files) {
    if (regular_file_size(folder_ + "/" + file) != record.bytes)
      throw IoError(fmt::format("{}: file {} does not have the listed size of {} bytes", path, file, record.bytes));
  }
  return part;
}

std::vector<PartialManifest> SaveAttempt::collect_partials(PartialManifest own) {
  std::vector<PartialManifest> parts(static_cast<size_t>(world_));
  std::set<int> missing;
  for (int rank = 1; rank < world_; ++rank) missing.insert(rank);
  parts[0] = std::move(own);
  const auto all_there = [&] {
    if (const State now = state(); now == State::failed) {
      throw IoError(reason());
    } else if (now != State::open) {
      throw IoError(
          fmt::format("{}: the folder was removed during the save. Make sure that no other run writes here", folder_));
    }
    const std::set<std::string> names = names_in(folder_ + kParts);
    std::erase_if(missing, [&](int rank) {
      if (!names.contains(partial_manifest_name(rank))) return false;
      parts[static_cast<size_t>(rank)] = read_partial(rank);
      return true;
    });
    return missing.empty();
  };
  if (!wait_until(all_there, timeout_))
    throw IoError(fmt::format("rank{} {} of {} {} not written all files within {} after rank 0 finished",
                              missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), world_,
                              missing.size() == 1 ? "has" : "have", text_of(timeout_)));
  return parts;
}

void SaveAttempt::commit() {
  commit_folder(dir_, folder_, path_);
  std::error_code error;
  fs::remove_all(path_ + kParts, error);
  if (error) throw IoError(fmt::format("{}{}: {}", path_, kParts, error.message()));
}

void SaveAttempt::wait_for_commit() {
  const auto ended = [this] { return is_decided(); };
  if (!wait_until(ended, timeout_)) {
    abort(fmt::format("rank 0 did not complete the checkpoint within {}", text_of(timeout_)));
    // If rank 0 has already renamed the folder, it is too late to abort. Then this rank waits only until rank 0 has
    // synced the new name.
    if (!wait_until(ended, std::max(timeout_, kMinSyncWait)))
      throw IoError("rank 0 renamed the checkpoint folder, but neither completed nor aborted the checkpoint");
  }
  if (state() != State::complete) throw IoError(reason());
}

bool SaveAttempt::is_decided() const {
  const State now = state();
  return now == State::failed || now == State::complete;
}

SaveAttempt::State SaveAttempt::state() const {
  const std::set<std::string> names = names_in(dir_);
  if (names.contains(fmt::format("{}{}", kFailedPrefix, name_))) return State::failed;
  if (names.contains(fmt::format("{}{}", kPartialPrefix, name_))) return State::open;
  // A step-N folder may also come from an earlier attempt, so the token is compared.
  if (!names.contains(step_name(step_)) || attempt_of(path_) != token_) return State::none;
  return exists(path_ + kParts) ? State::open : State::complete;
}

std::string SaveAttempt::reason() const {
  try {
    // If the disk was full, the reason file is empty or missing.
    if (std::string text = obs::read_whole_file(failed_ + kReason, kMaxReasonBytes); !text.empty()) return text;
  } catch (const IoError&) {
  }
  return fmt::format("checkpoint {}: another rank aborted, and its reason could not be written to disk", path_);
}

std::string SaveAttempt::abort(const std::string& why) {
  const std::string text = fmt::format("checkpoint {}: rank {}: {}", path_, rank_, why);
  const auto leave_reason = [&](const std::string& folder) {
    try {
      obs::File(folder + kReason, O_WRONLY | O_CREAT | O_EXCL).write_all(text);
    } catch (const IoError&) {
      // Another rank wrote a reason first, or the disk is full. The name of the folder is enough to report the failure.
    }
  };
  std::error_code error;
  bool mine = false;
  if (!begun_) {
    // This rank has not seen an attempt folder that it could rename. It creates a .failed- folder that contains only
    // the reason. Before the first checkpoint the parent folders may be missing too, so they are created. The temporary
    // name does not start with .partial-, because rank 0 removes folders with that prefix.
    const std::string empty = fmt::format("{}.r{}", failed_, rank_);
    fs::create_directories(empty, error);
    leave_reason(empty);
    std::rename(empty.c_str(), failed_.c_str());
  } else {
    leave_reason(folder_);
    mine = std::rename(folder_.c_str(), failed_.c_str()) == 0;
    if (!mine && rank_ == 0 && attempt_of(path_) == token_) {
      // Rank 0 has already renamed the folder to step-N, but perhaps did not sync the new name.
      leave_reason(path_);
      mine = std::rename(path_.c_str(), failed_.c_str()) == 0;
    }
  }
  if (mine)
    for (const std::string& name : names_in(failed_))
      if ("/" + name != kReason) fs::remove_all(failed_ + "/" + name, error);
  return state() == State::failed ? reason() : text;
}

}  // namespace esp::ckpt
