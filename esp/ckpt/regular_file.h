// Opens files of a checkpoint folder, which may come from an untrusted source. Accepts regular files only: no symbolic
// link, no pipe (a read would block) and no device (a read may never end).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "esp/ckpt/manifest.h"
#include "esp/obs/file.h"

namespace esp::ckpt {

// Opens a file for reading. If it is not a regular file, throws an IoError with the path and the kind of file.
obs::File open_regular_file(const std::string& path);
std::string read_regular_file(const std::string& path, uint64_t max_bytes);
// size in bytes; empty if the path is not a regular file
std::optional<uint64_t> regular_file_size(const std::string& path);

// Throws IoError if the file's size or checksum differs from the manifest's record.
void verify_file(const std::string& path, const FileRecord& record);

}  // namespace esp::ckpt
