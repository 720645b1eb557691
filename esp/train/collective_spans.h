// Adds collective calls to a trace: the start and the end of each call on the communicator thread, taken from the
// flight recorder.
#pragma once

#include "esp/obs/flight_recorder.h"
#include "esp/obs/spans.h"

namespace esp::train {

// Adds one trace row per group, in the order of the groups' first calls. Calls that the recorder's ring buffer has
// overwritten are missing.
void add_collective_spans(obs::FlightRecorder& flight, obs::Tracer& tracer);

}  // namespace esp::train
