#include "apps/espalier/program.h"

int main(int argc, char** argv) {
  return esp::app::run_program(argc, argv);
}
