// Has the kernel tell us, within some seconds, when the machine at the other end of an idle connection is gone. A
// process that is merely stopped keeps its connection: its kernel answers for it.
#pragma once

namespace esp::net {

void keep_alive(int fd);

}  // namespace esp::net
