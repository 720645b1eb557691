#include <cstring>

#include "esp/device/gpu.h"

namespace esp::device {

void copy_on_host(void* to, const void* from, size_t bytes, const Stream& stream) {
  constexpr int64_t kGrain = 256 << 10;  // below this size a second thread costs more than it saves
  parallel_for(stream, static_cast<int64_t>(bytes), kGrain, [=](int64_t begin, int64_t end) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

}  // namespace esp::device
