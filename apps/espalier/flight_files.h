// The flight recorders of a run: flight/rank-K.flight in its folder, which outlive their ranks however they end. Those
// of the start before are kept as rank-K.previous.flight.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "esp/base/log.h"
#include "esp/obs/flight_recorder.h"

namespace esp::app {

// In memory only, with a warning, where the folder cannot be written to: that alone must not end a run.
std::shared_ptr<obs::FlightRecorder> open_flight_recorder(const std::string& run_folder, int rank, int world,
                                                          const Log& log);

// Paths by rank. IoError when there are none.
std::vector<std::string> flight_files(const std::string& run_folder, bool previous);

}  // namespace esp::app
