#include "apps/espalier/command.h"
namespace esp::app {
void define_lab_allreduce(CLI::App&, Chosen&) {}
}  // namespace esp::app
