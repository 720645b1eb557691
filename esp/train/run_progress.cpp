#include "esp/train/run_progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "esp/base/error.h"

namespace esp::train {
namespace {

constexpr const char* kName = "/highest-step";

}  // namespace

RunProgress::RunProgress(const std::string& folder) {
  if (folder.empty()) return;
  highest_ = highest_step(folder);
  file_ = std::make_unique<obs::File>(folder + kName, O_RDWR | O_CREAT);
}

void RunProgress::reached(int64_t step) {
  if (!file_ || step <= highest_) return;
  if (::pwrite(file_->fd(), &step, sizeof step, 0) == sizeof step) highest_ = step;
}

int64_t highest_step(const std::string& folder) {
  try {
    const std::string bytes = obs::File(folder + kName, O_RDONLY).read(0, sizeof(int64_t));
    int64_t step = -1;
    if (bytes.size() == sizeof step) std::memcpy(&step, bytes.data(), sizeof step);
    return step;
  } catch (const IoError&) {
    return -1;
  }
}

}  // namespace esp::train
