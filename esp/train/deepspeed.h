// A DeepSpeed configuration as keys of the run file, with everything said that was not carried over.
//
// DeepSpeed's defaults are written out where ours differ, so that a run means what it meant there. The model, the data
// and the number of steps are in the user's script and not in the file; they are named as missing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace esp::train {

struct Imported {
  struct Carried {
    std::string from;        // "optimizer.params.lr"; empty: DeepSpeed's default
    std::string key, value;  // "train.lr" and its TOML text
    std::string note;        // what is a little different here; may be empty
  };
  struct Left {
    std::string from, why;
  };
  std::vector<Carried> carried;
  std::vector<Left> left;            // keys of the file that do nothing here
  std::vector<std::string> missing;  // what a run needs besides

  std::vector<std::string> overrides() const;  // section.key=value
};

// `ranks`: how many the batch sizes are for; 0 when that is not known. IoError: no JSON; UsageError: a configuration
// that contradicts itself or has values of another type, with the key.
Imported import_deepspeed(std::string_view json, std::string_view name, int64_t ranks);

// A run file of the carried keys, and the rest as comments. `base`: the text of a run file to lay them over, or empty.
std::string to_run_file(const Imported& imported, std::string_view name, std::string_view base);

}  // namespace esp::train
