// Asks our loader what it finds: a checkpoints folder per line of input, a line of JSON per answer. Nothing is trained;
// every tensor is read as a resumed run would.
//   {"found": null}    {"refused": WHY}    {"found": "step-4", "step": 4, "bits": CHECKSUM, "skipped": [WHY, …]}
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

// Of names, shapes, types, elements and state, without what tells of paths.
std::string bits_of(const esp::ckpt::Checkpoint& checkpoint) {
  esp::device::MemoryAccount account;
  esp::device::MemoryPool pool(account);
  const esp::tensor::Context context{{}, &pool};
  std::string all;
  for (const std::string& name : checkpoint.names()) {
    const esp::ckpt::Piece piece{name,
                                 checkpoint.shape_of(name),
                                 {},
                                 {},
                                 0,
                                 esp::tensor::empty(context, checkpoint.shape_of(name), checkpoint.dtype_of(name),
                                                    esp::device::MemoryCategory::other)};
    checkpoint.read(piece);
    const std::span bytes(piece.values.as<std::byte>(), piece.values.bytes());
    all += fmt::format("{} {} {}\n", name, piece.values.shape().text(), esp::ckpt::checksum_of(bytes));
  }
  Json state = checkpoint.state();
  for (const char* of_a_start : {"run", "restarts", "tokenizer"}) state.erase(of_a_start);
  all += state.dump();
  return esp::ckpt::checksum_of(std::as_bytes(std::span(all)));
}

Json answer(const std::string& dir) {
  std::vector<std::string> skipped;
  try {
    const auto found = esp::ckpt::newest_sound(dir, &skipped);
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
    // What is wrong with a file may be told in its own bytes.
    fmt::print("{}\n", answer(dir).dump(-1, ' ', false, Json::error_handler_t::replace));
    std::fflush(stdout);
  }
  return 0;
}
