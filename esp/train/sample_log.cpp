#include "esp/train/sample_log.h"

#include <fcntl.h>

#include <filesystem>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"

namespace esp::train {
namespace {

std::string path_of(const std::string& run_folder, int rank) {
  const std::string folder = run_folder + "/samples";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError(fmt::format("{}: {}", folder, error.message()));
  return fmt::format("{}/rank-{}.jsonl", folder, rank);
}

// FNV-1a over the token ids: short, equal on every platform, and easy to compute again in a script.
uint64_t fingerprint(std::span<const int32_t> ids) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001b3;
  return hash;
}

}  // namespace

SampleLog::SampleLog(const std::string& run_folder, int rank, int replica)
    : file_(path_of(run_folder, rank), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW), replica_(replica) {}

void SampleLog::note(int64_t step, const data::Batch& batch) {
  std::vector<std::string> rows;
  const auto T = static_cast<size_t>(batch.shape.T);
  for (size_t row = 0; row < static_cast<size_t>(batch.B); ++row)
    rows.push_back(fmt::format("\"{:016x}\"", fingerprint(std::span(batch.inputs).subspan(row * T, T))));
  const std::span samples(batch.samples.data(), static_cast<size_t>(batch.B));
  file_.write_all(fmt::format("{{\"step\":{},\"copy\":{},\"samples\":[{}],\"rows\":[{}]}}\n", step, replica_,
                              fmt::join(samples, ","), fmt::join(rows, ",")));
}

}  // namespace esp::train
