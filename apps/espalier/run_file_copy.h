// A launcher reads the run file once, when its job begins, and ranks get that copy, also those that are started later:
// editing the file changes nothing of a job that runs. The copy lies in memory behind a descriptor that ranks inherit.
#pragma once

#include <optional>
#include <string>

#include "esp/launch/environment.h"

namespace esp::app {

class RunFileCopy {
 public:
  // `text`: what was read at `path`. IoError.
  RunFileCopy(std::string path, std::string text);
  ~RunFileCopy();
  RunFileCopy(const RunFileCopy&) = delete;
  RunFileCopy& operator=(const RunFileCopy&) = delete;

  // For the environment of ranks.
  std::string variable() const;
  static constexpr const char* kVariable = "ESPALIER_RUN_FILE";
  // Whether the file is another one by now, or gone.
  bool is_outdated() const;

 private:
  std::string path_, text_;
  int fd_ = -1;
};

// What the launcher of this rank has read at `path`; nothing where no launcher did. UsageError, IoError.
std::optional<std::string> copied_run_file(const launch::Environment& environment, const std::string& path);

}  // namespace esp::app
