// TensorBoard event files: scalars over steps. The format is records of (length, masked CRC-32C of it, data, masked
// CRC-32C of that), the data being the protobuf messages Event, Summary and SessionLog, of which seven fields are
// written here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "esp/obs/file.h"

namespace esp::train {

class TensorBoard {
 public:
  // A new file events.out.tfevents.<time>.<host>.<pid> in `folder`, which is made where it is missing. What earlier
  // files say of `first_step` and later is of a run that went on elsewhere; TensorBoard is told to forget it.
  TensorBoard(const std::string& folder, int64_t first_step);
  void scalar(std::string_view tag, double value, int64_t step);
  void flush();

 private:
  void record(std::string_view event);

  obs::File file_;
  std::string gathered_;
};

uint32_t crc32c(std::string_view bytes);

}  // namespace esp::train
