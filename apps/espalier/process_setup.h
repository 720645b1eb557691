// Process settings that every command applies at its start.
#pragma once

namespace esp::app {

// Sets limits, security and signal settings:
//   - PR_SET_NO_NEW_PRIVS: no privileges through set-user-id programs (not for `launch`, which may start one).
//   - No core dumps, which contain training data, neither to a file nor to a program; ESPALIER_CORE=1 keeps them.
//   - Up to 65536 open files if the hard limit allows (not for `launch`): a rank has sockets for every peer, and a
//     checkpoint has files of every rank.
//   - SIGCHLD gets its default action: if a parent daemon ignored it, Linux would discard the exit status of ranks.
//   - SIGXFSZ is ignored: writing beyond `ulimit -f` is then an error with a path (EFBIG), as on a full disk.
//   - Closed standard streams are opened on /dev/null (stdout and stderr unwritable), so no other file gets descriptor
//     0, 1 or 2.
void set_up_process(bool starts_other_programs);

// For commands that continue after the reader of their output has ended. Writing to a pipe without a reader then
// returns EPIPE instead of ending the process (SIGPIPE).
void ignore_closed_pipes();

}  // namespace esp::app
