// Process settings that every command makes at its start.
#pragma once

namespace esp::app {

// No new privileges through set-user-id programs (but for `launch`, which may be told to start one), and no core
// dumps: they hold training data and the job's secret. ESPALIER_CORE=1 keeps core dumps as the shell allows them.
// SIGCHLD gets its default action: a daemon that started us may have ignored it, and the kernel would then discard the
// exit status of every rank. SIGXFSZ is ignored: writing beyond `ulimit -f` is then an error with a path (EFBIG), as on
// a full disk. Standard streams that the caller has closed are opened on /dev/null, stdout and stderr unwritable: a
// file that is opened later never gets their number.
void begin_with_little(bool starts_other_programs);

// For commands whose work outlives their output: writing to a pipe without a reader is an error (EPIPE), not the end of
// the process (SIGPIPE).
void ignore_closed_pipes();

}  // namespace esp::app
