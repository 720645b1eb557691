// Files of a checkpoint folder, which may come from anywhere: regular files only, no symbolic link, nothing that a read
// would wait for (a pipe) or never end with (a device).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "esp/ckpt/manifest.h"
#include "esp/obs/file.h"

namespace esp::ckpt {

// For reading. IoError names the path and what it is instead.
obs::File open_own_file(const std::string& path);
std::string read_own_file(const std::string& path, uint64_t max_bytes);
std::optional<uint64_t> own_file_size(const std::string& path);  // nothing where no regular file is

// Whether the file is what the manifest tells of; says so with an IoError where it is not.
void check_own_file(const std::string& path, const FileRecord& record);

}  // namespace esp::ckpt
