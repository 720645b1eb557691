// tokenizer_bench TOKENIZER PATTERN|- REPEATS FILE…: encodes the lines of the files on one thread, REPEATS times.
// Prints one line per repetition: bytes, ids, seconds. tokenizer_speed.py compares it with other packages.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "esp/base/error.h"
#include "esp/data/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER PATTERN|- REPEATS FILE...\n");
    return 2;
  }
  try {
    std::string pattern = argv[2];
    auto tokenizer = esp::data::load_tokenizer(argv[1], pattern == "-" ? "" : pattern);
    std::vector<std::string> lines;
    size_t bytes = 0;
    for (int i = 4; i < argc; ++i) {
      std::ifstream file(argv[i], std::ios::binary);
      if (!file) throw esp::IoError(std::string("cannot read ") + argv[i]);
      for (std::string line; std::getline(file, line);) {
        line += '\n';
        bytes += line.size();
        lines.push_back(line);
      }
    }
    std::vector<int32_t> ids;
    for (int round = 0; round < std::atoi(argv[3]); ++round) {
      ids.clear();
      auto begun = std::chrono::steady_clock::now();
      for (const std::string& line : lines) tokenizer->encode_ordinary(line, ids);
      double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
      std::printf("%zu %zu %.6f\n", bytes, ids.size(), seconds);
    }
  } catch (const esp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
  return 0;
}
