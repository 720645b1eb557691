// What the files a run reads hold: of each its size and a hash of its content (data/file_digest.h), under the key that
// names it. Written into run.toml and checkpoints as data.identity. Equal on all ranks of a run, and when it resumes.
//
// Paths are not compared, and times are not part of it: hosts may keep copies of the files elsewhere.
#pragma once

#include <string>
#include <vector>

#include "esp/train/run_config.h"

namespace esp::train {

// One line per file: «data.train 18000 3f2a… text.txt». Of more files than kMaxIdentityLines a line stands for several
// that follow each other. A file that cannot be read has the reason in its line: whoever needs it says so as well.
inline constexpr size_t kMaxIdentityLines = 256;
std::vector<std::string> data_identity(const RunConfig& config);

struct IdentityLine {
  std::string key, content, path;  // content: «18000 bytes, hash 3f2a…», or why it cannot be read
  std::string subject() const { return key + " " + path; }
};
IdentityLine parse_identity_line(const std::string& line);

// What differs between two identities, line by line below each key: «data.train text.txt: 18000 bytes, … → 17000 …».
struct IdentityChange {
  std::string subject, before, now;
};
std::vector<IdentityChange> identity_changes(const std::vector<std::string>& before,
                                             const std::vector<std::string>& now);

// obs::FileChanged names what changed since config.data.identity was written. Where the run has begun model.init is
// not read again, and may change. Nothing is compared with an empty one.
void check_data_unchanged(const RunConfig& config);

}  // namespace esp::train
