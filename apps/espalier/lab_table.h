// The experiments of `espalier lab`, one row each, ordered by chapter. Options and code of a lab are in lab_<name>.cpp.
#pragma once

#include <span>
#include <string_view>

#include "apps/espalier/command.h"

namespace esp::app {

struct Experiment {
  Command command;               // name, help line and options of the subcommand
  std::string_view title;        // title in the report
  std::string_view look;         // text for the report: a few sentences about what to look at
  std::string_view in_all = "";  // arguments that --all passes to this lab, separated by spaces
};

struct Chapter {
  std::string_view title;
  std::span<const Experiment> experiments;
};

std::span<const Chapter> chapters();

void define_lab_activation(const Arguments& app, SelectedCommand& chosen);
void define_lab_collectives(const Arguments& app, SelectedCommand& chosen);
void define_lab_exchange(const Arguments& app, SelectedCommand& chosen);
void define_lab_hosts(const Arguments& app, SelectedCommand& chosen);
void define_lab_host_rank(const Arguments& app, SelectedCommand& chosen);  // subcommand for one rank of `lab hosts`
void define_lab_offload(const Arguments& app, SelectedCommand& chosen);
void define_lab_policies(const Arguments& app, SelectedCommand& chosen);
void define_lab_staleness(const Arguments& app, SelectedCommand& chosen);
void define_lab_throughput(const Arguments& app, SelectedCommand& chosen);
void define_lab_zeropp(const Arguments& app, SelectedCommand& chosen);

}  // namespace esp::app
