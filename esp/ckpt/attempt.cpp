#include "esp/ckpt/attempt.h"

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
#include "esp/ckpt/own_file.h"
#include "esp/ckpt/steps.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
constexpr const char* kParts = "/parts";
constexpr const char* kReason = "/reason.txt";
constexpr size_t kMaxReasonBytes = 64 << 10;
constexpr Duration kLongestPause = milliseconds(50), kLastWait = std::chrono::seconds(3);
constexpr Duration kLeastForSyncs = std::chrono::seconds(30);

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator(); at.increment(error))
    names.insert(at->path().filename().string());
  return names;
}

// Which attempt made the checkpoint; empty when that cannot be told.
std::string attempt_of(const std::string& path) {
  try {
    const std::string manifest = path + "/" + kManifestName;
    return parse_manifest(read_own_file(manifest, kMaxJsonBytes), manifest).attempt;
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

Attempt::Attempt(const std::string& dir, int64_t step, const SaveOptions& options)
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
      leaving_(options.leaving),
      peer_lost_(options.peer_lost),
      check_folder_(options.check_folder) {
  if (rank_ < 0 || rank_ >= world_) throw UsageError(fmt::format("a checkpoint by rank {} of {}", rank_, world_));
  if (!plain_token(token_))
    throw UsageError(
        fmt::format("a checkpoint by {} ranks: got token \"{}\"; expected 1 to 100 letters, digits, '.', '_' or "
                    "'-', the same on all ranks",
                    world_, token_));
}

bool Attempt::wait_until(const std::function<bool()>& ready, Duration timeout) const {
  Deadline deadline = Deadline::after(timeout);
  bool hurried = false;
  Duration pause = milliseconds(1);
  while (!ready()) {
    if (deadline.passed()) return false;
    if (check_folder_) check_folder_();
    if (peer_lost_ && peer_lost_()) {
      // It may have completed just before it went.
      if (ready()) return true;
      throw IoError("another rank was lost");
    }
    // Then nobody can say how it ended, nor go on.
    if (::access(dir_.c_str(), W_OK) != 0 && errno == EROFS)
      throw IoError(fmt::format("{}: {}", dir_, errno_text(EROFS)));
    if (!hurried && leaving_ && *leaving_) {
      deadline = deadline.earlier(kLastWait);
      hurried = true;
    }
    std::this_thread::sleep_for(std::min(pause, deadline.left()));
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

void Attempt::begin() {
  if (rank_ == 0) {
    clear_for_writing(dir_);
    if (state() == State::failed) throw IoError(reason());  // somebody came, waited, and left
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
    throw IoError(fmt::format("rank 0 has not begun within {}", text_of(begin_timeout_)));
  if (now == State::failed) throw IoError(reason());
  begun_ = true;
}

void Attempt::hand_in(const Part& part) {
  sync_folder(folder_);
  // Once it is seen rank 0 may complete the attempt, and the folder has another name.
  obs::write_whole_file(folder_ + kParts + "/" + part_name(rank_), to_json(part), true);
}

Part Attempt::read_part(int rank) const {
  const std::string path = folder_ + kParts + "/" + part_name(rank);
  Part part = parse_part(read_own_file(path, kMaxJsonBytes), path);
  if (part.rank != rank || part.world != world_ || part.manifest.step != step_ || part.manifest.attempt != token_)
    throw IoError(fmt::format("{} is of rank {} of {}, step {}, attempt {}", path, part.rank, part.world,
                              part.manifest.step, part.manifest.attempt));
  for (const auto& [file, record] : part.manifest.files) {
    if (own_file_size(folder_ + "/" + file) != record.bytes)
      throw IoError(fmt::format("{} tells of {} with {} bytes, which is not what is there", path, file, record.bytes));
  }
  return part;
}

std::vector<Part> Attempt::collect(Part own) {
  std::vector<Part> parts(static_cast<size_t>(world_));
  std::set<int> missing;
  for (int rank = 1; rank < world_; ++rank) missing.insert(rank);
  parts[0] = std::move(own);
  const auto all_there = [&] {
    if (const State now = state(); now == State::failed) {
      throw IoError(reason());
    } else if (now != State::open) {
      throw IoError(fmt::format("{} was taken away: another run writes here", folder_));
    }
    const std::set<std::string> names = names_in(folder_ + kParts);
    std::erase_if(missing, [&](int rank) {
      if (!names.contains(part_name(rank))) return false;
      parts[static_cast<size_t>(rank)] = read_part(rank);
      return true;
    });
    return missing.empty();
  };
  if (!wait_until(all_there, timeout_))
    throw IoError(fmt::format("rank{} {} of {} {} not written within {} after rank 0", missing.size() == 1 ? "" : "s",
                              fmt::join(missing, ", "), world_, missing.size() == 1 ? "has" : "have",
                              text_of(timeout_)));
  return parts;
}

void Attempt::complete() {
  put_in_place(dir_, folder_, path_);
  std::error_code error;
  fs::remove_all(path_ + kParts, error);
  if (error) throw IoError(fmt::format("{}{}: {}", path_, kParts, error.message()));
}

void Attempt::await_end() {
  const auto ended = [this] { return settled(); };
  if (!wait_until(ended, timeout_)) {
    give_up(fmt::format("rank 0 has not completed it within {}", text_of(timeout_)));
    // Too late to give up where rank 0 has renamed the folder: only its last syncs are left to wait for.
    if (!wait_until(ended, std::max(timeout_, kLeastForSyncs)))
      throw IoError("rank 0 has renamed it and then neither completed it nor given up");
  }
  if (state() != State::complete) throw IoError(reason());
}

bool Attempt::settled() const {
  const State now = state();
  return now == State::failed || now == State::complete;
}

Attempt::State Attempt::state() const {
  const std::set<std::string> names = names_in(dir_);
  if (names.contains(fmt::format("{}{}", kFailedPrefix, name_))) return State::failed;
  if (names.contains(fmt::format("{}{}", kPartialPrefix, name_))) return State::open;
  // A checkpoint of this step may be there from before.
  if (!names.contains(step_name(step_)) || attempt_of(path_) != token_) return State::none;
  return exists(path_ + kParts) ? State::open : State::complete;
}

std::string Attempt::reason() const {
  try {
    // Empty, or not there, where the disk did not take it.
    if (std::string text = obs::read_whole_file(failed_ + kReason, kMaxReasonBytes); !text.empty()) return text;
  } catch (const IoError&) {
  }
  return fmt::format("checkpoint {}: another rank gave up, and the disk did not take its reason", path_);
}

std::string Attempt::give_up(const std::string& why) {
  const std::string text = fmt::format("checkpoint {}: rank {}: {}", path_, rank_, why);
  const auto leave_reason = [&](const std::string& folder) {
    try {
      obs::File(folder + kReason, O_WRONLY | O_CREAT | O_EXCL).write_all(text);
    } catch (const IoError&) {  // somebody was earlier, or the disk is full: the name of the folder says enough
    }
  };
  std::error_code error;
  bool mine = false;
  if (!begun_) {
    // There is no folder to rename yet: one with nothing but the reason will do. Before the first checkpoint not even
    // the folder around it is there.
    const std::string empty = fmt::format("{}.r{}", failed_, rank_);  // rank 0 clears away .partial-
    fs::create_directories(empty, error);
    leave_reason(empty);
    std::rename(empty.c_str(), failed_.c_str());
  } else {
    leave_reason(folder_);
    mine = std::rename(folder_.c_str(), failed_.c_str()) == 0;
    if (!mine && rank_ == 0 && attempt_of(path_) == token_) {
      // Renamed, but not surely on the disk.
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
