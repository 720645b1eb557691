// Fuzzes the record readers. Any bytes are read as records or rejected with IoError. Reading can stop and resume after
// every record.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/records.h"

namespace {

using namespace esp::data;

std::unique_ptr<RecordReader> reader(InputKind kind, std::string_view bytes, const RecordPosition& start) {
  return make_record_reader(
      kind, [bytes] { return make_byte_stream(bytes, Compression::none, "fuzz input"); }, "fuzz input",
      {"text", "label"}, 4096, start);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 65536) return 0;
  constexpr InputKind kKinds[] = {InputKind::jsonl, InputKind::json, InputKind::csv, InputKind::tsv};
  const InputKind kind = kKinds[data[0] % 4];
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  struct RecordEnd {
    RecordPosition after;
    std::string location;
  };
  std::vector<RecordEnd> records_read;
  try {
    auto records = reader(kind, bytes, {});
    while (records->next()) {
      records_read.push_back({records->after(), records->location()});
      (void)records->field(1);
      try {
        (void)records->text(0);
      } catch (const esp::IoError&) {
      }
    }
  } catch (const esp::IoError&) {
    return 0;
  }
  for (size_t i = 0; i < records_read.size() && i < 3; ++i) {
    auto again = reader(kind, bytes, records_read[i].after);
    const bool more = again->next();
    ESP_CHECK(more == (i + 1 < records_read.size()));
    ESP_CHECK(!more || (again->location() == records_read[i + 1].location &&
                        again->after().offset == records_read[i + 1].after.offset));
  }
  return 0;
}
