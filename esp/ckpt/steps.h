// Checkpoint folders (step-N): listing, completeness, removal of old ones, and the final rename of a new one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace esp::ckpt {

// Prefixes of folders that are not checkpoints: .partial- while one is being written, .failed- after writing failed.
inline constexpr std::string_view kPartialPrefix = ".partial-";
inline constexpr std::string_view kFailedPrefix = ".failed-";

// Creates `dir` and its missing parent folders. Each folder is synced before anything is created in it. If `dir` itself
// is new, it gets `mode`. Throws IoError.
void make_folders(const std::string& dir, mode_t mode = 0777);

// largest step number: sums and products with a step stay within 64 bits
inline constexpr int64_t kMaxStep = 1'000'000'000'000'000;

std::string step_name(int64_t step);  // "step-7"
// Steps and paths of the checkpoints, newest first. `ignored` lists entries that have the name of a checkpoint but are
// not one, each with the reason.
std::vector<std::pair<int64_t, std::string>> list_steps(const std::string& dir,
                                                        std::vector<std::string>* ignored = nullptr);

// Removes complete checkpoints except the newest `keep` (0: removes nothing). Never removes `written`, at
// any step.
void remove_old(const std::string& dir, int keep, const std::string& written);

// Creates `dir` if needed, and removes partial files of a crashed attempt.
void prepare_folder(const std::string& dir);
// Removes failed attempts. Call it only after a later attempt is complete: until then a rank may still read the reason.
void remove_failed(const std::string& dir);

// Syncs `folder`, a subfolder of `dir`, and renames it to `path`. Replaces a checkpoint that already has that name.
// Throws IoError.
void commit_folder(const std::string& dir, const std::string& folder, const std::string& path);

void sync_folder(const std::string& path);

}  // namespace esp::ckpt
