// Fuzzes the detection of content types. Any bytes are either text, or a format with a name and a fix.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "esp/base/check.h"
#include "esp/data/content_type.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::data;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const ContentType content = detect_content_type_of_bytes(bytes, "some {folder}/fuzz.input");
  ESP_CHECK(content.is_text() == content.fix.empty());
  ESP_CHECK(content.examined_bytes == size && content.invalid_bytes <= size);
  ESP_CHECK(!content.is_text() || bytes.starts_with(content.head));
  if (is_utf8(bytes) && bytes.find('\0') == bytes.npos) ESP_CHECK(content.invalid_bytes == 0);
  return 0;
}
