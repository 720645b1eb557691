// Fuzz test: decodes arbitrary bytes. The decoder must throw an error or write inside the output vector only.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/sync/compress/compressor.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp;
  static const std::array specs = {"identity",    "fp16",          "int8:16", "int4:6", "random:0,1,2",
                                   "qsgd:5:16",   "natural",       "sign",    "onebit", "topk:0.2",
                                   "randomk:0.2", "threshold:0.5", "bf16"};
  if (size < 3) return 0;
  const auto compressor = sync::make_compressor(specs[data[0] % specs.size()]);
  const int64_t count = data[1];
  const auto into = static_cast<kernel::WriteMode>(data[2] % 3);
  // Half of the inputs get the expected length. Most of the others would fail the length check.
  const bool fit = data[2] & 128;
  std::vector<std::byte> code(reinterpret_cast<const std::byte*>(data + 3),
                              reinterpret_cast<const std::byte*>(data + size));
  if (fit && compressor->fixed_length()) code.resize(compressor->encoded_bytes(count, DType::f32));
  std::vector<float> y(static_cast<size_t>(count) + 2, 1.0f);
  try {
    compressor->decode(y.data() + 1, into, code, count, DType::f32, {1, data[2], 0}, {});
  } catch (const CommError&) {
  }
  ESP_CHECK(y.front() == 1.0f && y.back() == 1.0f, "written past the vector");
  return 0;
}
