// What every process of ours gives up at its start, so that what goes wrong later cannot use it.
#pragma once

namespace esp::app {

// No new privileges through set-user-id programs (but for `launch`, which may be told to start one), and no core
// dumps: they hold training data and the job's secret. ESPALIER_CORE=1 keeps core dumps as the shell allows them.
void begin_with_little(bool starts_other_programs);

}  // namespace esp::app
