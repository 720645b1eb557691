// A temporary folder for a test, a benchmark or an experiment, removed by the destructor.
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "esp/base/error.h"

namespace esp::obs {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code none;
    const std::filesystem::path place = std::filesystem::temp_directory_path(none);
    if (none) throw IoError("TMPDIR: the folder for temporary files does not exist. Set TMPDIR to an existing folder.");
    std::string pattern = (place / "espalier-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw IoError("cannot create a temporary folder: " + errno_text(errno));
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace esp::obs
