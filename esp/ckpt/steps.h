// The checkpoints of a folder: which there are, which are complete, which may go, and how one comes into place.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace esp::ckpt {

// Folders that begin with these are no checkpoints: one being written, one whose writing failed.
inline constexpr std::string_view kPartialPrefix = ".partial-";
inline constexpr std::string_view kFailedPrefix = ".failed-";

// Folders down to `dir`, each on the disk before anything is in it; the last one with `mode`, where it is new. IoError.
void make_folders(const std::string& dir, mode_t mode = 0777);

inline constexpr int64_t kMaxStep = 1'000'000'000'000'000;  // sums and products with a step stay within 64 bits

std::string step_name(int64_t step);  // "step-7"
// Paths, newest first. `ignored`: entries named like checkpoints that are none, each with the reason.
std::vector<std::pair<int64_t, std::string>> steps_under(const std::string& dir,
                                                         std::vector<std::string>* ignored = nullptr);

// All but the newest `keep` complete ones go (0: none), and never `written`, whatever its number.
void remove_old(const std::string& dir, int keep, const std::string& written);

// Makes <dir> if need be, and removes what a crashed attempt left half written.
void clear_for_writing(const std::string& dir);
// What failed attempts left. Only after a later one is complete: until then a rank may be about to read why it failed.
void remove_failed(const std::string& dir);

// Syncs `folder`, a subfolder of `dir`, and renames it to `path`; one of that name is replaced. IoError.
void put_in_place(const std::string& dir, const std::string& folder, const std::string& path);

void sync_folder(const std::string& path);

}  // namespace esp::ckpt
