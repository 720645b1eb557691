// TensorBoardWriter: writes scalars by step to TensorBoard event files. A file is a sequence of records: length, masked
// CRC-32C of the length, data, masked CRC-32C of the data. The data are the protobuf messages Event, Summary and
// SessionLog. Only seven of their fields are written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "esp/obs/file.h"

namespace esp::train {

class TensorBoardWriter {
 public:
  // Opens a new file events.out.tfevents.<time>.<host>.<pid> in `folder` and creates the folder if needed. TensorBoard
  // then ignores what earlier files contain for `first_step` and later steps, because the resumed run writes these
  // steps again.
  TensorBoardWriter(const std::string& folder, int64_t first_step);
  void scalar(std::string_view tag, double value, int64_t step);
  void flush();

 private:
  void record(std::string_view event);

  obs::File file_;
  std::string buffer_;
};

uint32_t crc32c(std::string_view bytes);

}  // namespace esp::train
