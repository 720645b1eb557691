// Loads checkpoints with Espalier's own loader. Input: one checkpoints folder per line. Output: one line of JSON for
// each. Reads every tensor, as when a run resumes.
//     {"found": null}    {"refused": WHY}    {"found": "step-4", "step": 4, "bits": CHECKSUM, "skipped": [WHY, …]}
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/safetensors.h"

namespace {

using esp::Json;

// Checksum of a checkpoint's names, shapes, dtypes, elements and state. State that contains paths is excluded.
std::string bits_of(const esp::ckpt::Checkpoint& checkpoint) {
  esp::device::MemoryAccount account;
  esp::device::MemoryPool pool(account);
  const esp::tensor::Context context{{}, &pool};
  std::string all;
  for (const std::string& name : checkpoint.names()) {
    const esp::ckpt::TensorSlice piece{name,
                                       checkpoint.shape_of(name),
                                       {},
                                       {},
                                       0,
                                       esp::tensor::empty(context, checkpoint.shape_of(name), checkpoint.dtype_of(name),
                                                          esp::device::MemoryCategory::other)};
    checkpoint.read(piece);
    const std::span bytes(piece.values.as<std::byte>(), piece.values.bytes());
    all += fmt::format("{} {} {}\n", name, piece.values.shape().text(), esp::ckpt::file_checksum(bytes));
  }
  Json state = checkpoint.state();
  for (const char* key : {"run", "restarts", "tokenizer"}) state.erase(key);
  all += state.dump();
  return esp::ckpt::file_checksum(std::as_bytes(std::span(all)));
}

Json answer(const std::string& dir) {
  std::vector<std::string> skipped;
  try {
    const auto found = esp::ckpt::newest_valid(dir, &skipped);
    if (!found) return {{"found", nullptr}, {"skipped", skipped}};
    return {{"found", std::filesystem::path(found->path).filename().string()},
            {"step", found->checkpoint->step()},
            {"bits", bits_of(*found->checkpoint)},
            {"skipped", skipped}};
  } catch (const esp::IoError& error) {
    return {{"refused", error.what()}, {"skipped", skipped}};
  }
}

}  // namespace

int main() {
  for (std::string dir; std::getline(std::cin, dir);) {
    // Invalid UTF-8 is replaced, because an error text may contain raw bytes of a damaged file.
    fmt::print("{}\n", answer(dir).dump(-1, ' ', false, Json::error_handler_t::replace));
    std::fflush(stdout);
  }
  return 0;
}
