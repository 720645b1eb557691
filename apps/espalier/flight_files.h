// Flight recorder files of a run: flight/rank-K.flight in the run's folder. They remain after the processes, even after
// a crash. The files of the previous start are kept as rank-K.previous.flight.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "esp/base/log.h"
#include "esp/obs/flight_recorder.h"

namespace esp::app {

// If the folder is not writable, warns and records in memory: a missing flight file must not end a run.
std::shared_ptr<obs::FlightRecorder> open_flight_recorder(const std::string& run_folder, int rank, int world,
                                                          const Log& log);

// Paths of the files, in the order of ranks. IoError: there are no files.
std::vector<std::string> flight_files(const std::string& run_folder, bool previous);

}  // namespace esp::app
