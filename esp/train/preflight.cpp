#include "esp/train/preflight.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/ckpt/hf_folder.h"
#include "esp/ckpt/steps.h"
#include "esp/comm/preferences.h"
#include "esp/device/gpu.h"
#include "esp/net/transport.h"
#include "esp/train/data_pipeline.h"
#include "esp/train/trained_model.h"

namespace esp::train {
namespace {

void check_transport(const std::string& name) {
  std::vector<std::string_view> known = {"auto", "nccl"};
  for (const net::TransportRow& row : net::transports()) known.push_back(row.name);
  if (std::find(known.begin(), known.end(), name) == known.end()) unknown_name("transport", name, known);
}

}  // namespace

void make_run_folder(const std::string& folder) {
  // A new folder gets mode 0700, because the training data may be private. An existing folder keeps its mode.
  try {
    ckpt::make_folders(folder, 0700);
  } catch (const IoError& error) {
    throw IoError(fmt::format("run folder {}: {}. Set run.dir or --run-dir to another folder", folder, error.what()));
  }
}

void check_checkpoint_folder(const RunConfig& config) {
  namespace fs = std::filesystem;
  if (config.checkpoint.dir.empty()) return;  // the folder is inside the run folder, which is checked separately
  const fs::path folder = fs::absolute(checkpoint_folder_of(config)).lexically_normal();
  try {
    std::error_code error;
    // Folders that this check creates. They are removed again, because the run may not start.
    std::vector<fs::path> missing;
    for (fs::path at = folder; !at.empty() && !fs::exists(at, error); at = at.parent_path()) missing.push_back(at);
    ckpt::make_folders(folder.string(), 0700);
    const bool writable = ::access(folder.c_str(), W_OK | X_OK) == 0;
    const int why = errno;
    for (const fs::path& one : missing) ::rmdir(one.c_str());
    if (!writable) throw IoError(errno_text(why));
  } catch (const IoError& error) {
    throw IoError(fmt::format("checkpoint folder {}: {}. Set checkpoint.dir to another folder", config.checkpoint.dir,
                              error.what()));
  }
}

void check_before_launch(const RunConfig& config, int world) {
  if (world > 0) config.check_world(world);
  check_transport(config.comm.transport);
  if (config.comm.all_reduce != "auto") comm::parse_preferences("all_reduce=" + config.comm.all_reduce);
  if (config.run.device != "cpu") device::require_gpu(device::parse_device(config.run.device));
  check_data_pipeline(config);
  const std::string& wish = config.checkpoint.resume;
  if (wish != "auto" && wish != "none" && !ckpt::is_hf_folder(wish)) resolve_checkpoint(wish);
  check_checkpoint_folder(config);
  const std::string folder = run_folder_of(config);
  make_run_folder(folder);
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    throw IoError(
        fmt::format("run folder {}: {}. Set run.dir or --run-dir to another folder", folder, errno_text(errno)));
}

}  // namespace esp::train
