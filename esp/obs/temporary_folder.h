// For tests: a folder that is gone with its owner.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "esp/base/check.h"

namespace esp::obs {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "espalier-test-XXXXXX").string();
    ESP_CHECK(mkdtemp(pattern.data()), "cannot make {}", pattern);
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
