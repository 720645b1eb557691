// The identity of the data files that a run reads: size and content hash (data/file_digest.h) of each file, with the
// run-file key that names it. It is stored in run.toml and in checkpoints as data.identity. It must be equal on all
// ranks, and still be equal when the run resumes.
//
// Paths and modification times are not compared, because hosts may store the files at different paths.
#pragma once

#include <string>
#include <vector>

#include "esp/train/run_config.h"

namespace esp::train {

// One line per file: «data.train 18000 3f2a… text.txt». If there are more than kMaxIdentityLines files, one line stands
// for several consecutive files. The line of an unreadable file contains the reason; the code that reads the file
// reports it again.
inline constexpr size_t kMaxIdentityLines = 256;
std::vector<std::string> data_identity(const RunConfig& config);

struct IdentityLine {
  std::string key, content, path;  // content is «18000 bytes, hash 3f2a…», or the reason why the file cannot be read
  std::string subject() const { return key + " " + path; }
};
IdentityLine parse_identity_line(const std::string& line);

// One difference between two identities: «data.train text.txt: 18000 bytes, … → 17000 …». Lines of the same key are
// compared in order.
struct IdentityChange {
  std::string subject, before, now;
};
std::vector<IdentityChange> identity_changes(const std::vector<std::string>& before,
                                             const std::vector<std::string>& now);

// Throws obs::FileChanged if the files differ from config.data.identity; the message lists the differences. model.init
// is not checked, because a run reads it only at its start. Nothing is checked if the stored identity is empty.
void check_data_unchanged(const RunConfig& config);

}  // namespace esp::train
