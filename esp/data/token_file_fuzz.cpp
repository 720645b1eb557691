// Fuzzes the headers of token files. A header is rejected with IoError, or every token that it describes lies inside
// the file. The first byte chooses the format; for Megatron the next two bytes are the size of the .bin.
#include <cstddef>
#include <cstdint>
#include <span>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/token_file.h"

namespace {

void check_layout(const esp::data::TokenLayout& layout, uint64_t file_bytes) {
  ESP_CHECK(layout.offset_bytes + layout.count * esp::data::size_of(layout.type) == file_bytes);
}

void check_index(std::span<const std::byte> idx, uint64_t bin_bytes) {
  esp::data::MegatronIndex index(idx, bin_bytes, "fuzz input");
  for (uint64_t i = 0; i < index.num_sequences(); ++i)
    ESP_CHECK(index.offset_bytes(i) + index.length(i) * size_of(index.type()) <= bin_bytes);
  uint64_t before = 0;
  for (uint64_t i = 0; i <= index.num_documents(); ++i) {
    ESP_CHECK(index.document_start(i) >= before);
    before = index.document_start(i);
  }
  ESP_CHECK(before == index.num_sequences());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::data;
  if (size < 3) return 0;
  std::span<const std::byte> bytes = std::as_bytes(std::span(data, size)).subspan(3);
  try {
    switch (data[0] % 3) {
      case 0:
        check_layout(raw_layout(bytes.size(), static_cast<TokenType>(data[1] % 7), "fuzz input"), bytes.size());
        break;
      case 1:
        check_layout(read_llmc_header(bytes, "fuzz input"), bytes.size());
        break;
      case 2:
        check_index(bytes, data[1] + 256u * data[2]);
        break;
    }
  } catch (const esp::IoError&) {
  }
  return 0;
}
