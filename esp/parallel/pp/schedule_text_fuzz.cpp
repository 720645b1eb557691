// Fuzz target: any text is either rejected with an error, or a valid schedule that round-trips.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/parallel/pp/schedule_text.h"
#include "esp/parallel/pp/simulate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp;
  using namespace esp::parallel;
  if (size > 16384) return 0;
  try {
    const PipelineSchedule schedule =
        parse_schedule_text(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz input");
    ESP_CHECK(parse_schedule_text(write_schedule_text(schedule), "fuzz input") == schedule);
    simulate(schedule, equal_costs(schedule.shape, {1, 1, 1}, 0.5));
  } catch (const IoError&) {
  } catch (const UsageError&) {
  }
  return 0;
}
