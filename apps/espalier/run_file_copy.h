// A copy of the run file. The launcher reads the file once when the job begins, and all ranks get this copy, including
// ranks that start later. So editing the file does not change a running job. The copy is in memory; ranks inherit its
// descriptor.
#pragma once

#include <optional>
#include <string>

#include "esp/launch/environment.h"

namespace esp::app {

class RunFileCopy {
 public:
  // `text` is the content that was read from `path`. IoError: no copy can be created.
  RunFileCopy(std::string path, std::string text);
  ~RunFileCopy();
  RunFileCopy(const RunFileCopy&) = delete;
  RunFileCopy& operator=(const RunFileCopy&) = delete;

  // Value of the environment variable kVariable for ranks: the copy's descriptor and path.
  std::string variable() const;
  static constexpr const char* kVariable = "ESPALIER_RUN_FILE";
  // Whether the file was changed or removed since it was read.
  bool is_outdated() const;

 private:
  std::string path_, text_;
  int fd_ = -1;
};

// Text of the launcher's copy of the run file at `path`; nullopt if no launcher made one. Throws UsageError or IoError.
std::optional<std::string> inherited_run_file(const launch::Environment& environment, const std::string& path);

}  // namespace esp::app
