// Collectives in a trace: when each began and ended on the communicator's own thread, from its flight recorder.
#pragma once

#include "esp/obs/flight_recorder.h"
#include "esp/obs/spans.h"

namespace esp::train {

// One row per group of ranks, in the order of their first calls. What the ring has forgotten is not drawn.
void draw_collectives(obs::FlightRecorder& flight, obs::Tracer& tracer);

}  // namespace esp::train
