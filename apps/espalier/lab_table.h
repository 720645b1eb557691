// The experiments of `espalier lab`, by chapter: one row each; options and body are in lab_<name>.cpp.
#pragma once

#include <span>
#include <string_view>

#include "apps/espalier/command.h"

namespace esp::app {

struct Experiment {
  Command command;               // name, a line of help, its options
  std::string_view title;        // in the report
  std::string_view look;         // hints for the reader: a few sentences
  std::string_view in_all = "";  // arguments with --all, separated by spaces
};

struct Chapter {
  std::string_view title;
  std::span<const Experiment> experiments;
};

std::span<const Chapter> chapters();

void define_lab_activation(const Arguments& app, Chosen& chosen);
void define_lab_collectives(const Arguments& app, Chosen& chosen);
void define_lab_exchange(const Arguments& app, Chosen& chosen);
void define_lab_hosts(const Arguments& app, Chosen& chosen);
void define_lab_host_rank(const Arguments& app, Chosen& chosen);  // one rank of hosts
void define_lab_offload(const Arguments& app, Chosen& chosen);
void define_lab_policies(const Arguments& app, Chosen& chosen);
void define_lab_staleness(const Arguments& app, Chosen& chosen);
void define_lab_throughput(const Arguments& app, Chosen& chosen);
void define_lab_zeropp(const Arguments& app, Chosen& chosen);

}  // namespace esp::app
