// Replaces uring_io.cpp in builds without liburing.
#include "esp/sync/tier/file_io.h"

namespace esp::sync {

std::unique_ptr<FileIo> make_uring_io(int, size_t, std::string& why) {
  why = "this build has no liburing";
  return nullptr;
}

}  // namespace esp::sync
