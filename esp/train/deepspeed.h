// Imports a DeepSpeed configuration as keys of the run file, and lists everything that was not imported.
//
// Where DeepSpeed's default differs from Espalier's, the default is written out, so that training behaves as in
// DeepSpeed. The model, the data and the number of steps are in the training script and not in the file; they are
// listed as missing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace esp::train {

struct DeepSpeedImport {
  struct ImportedKey {
    std::string from;        // for example "optimizer.params.lr"; empty: the value is a default of DeepSpeed
    std::string key, value;  // for example "train.lr" and its value as TOML
    std::string note;        // how the meaning differs from DeepSpeed's; may be empty
  };
  struct IgnoredKey {
    std::string from, why;
  };
  std::vector<ImportedKey> keys;
  std::vector<IgnoredKey> ignored;   // keys of the file that have no effect in Espalier
  std::vector<std::string> missing;  // keys that the user must still set

  std::vector<std::string> overrides() const;  // the imported keys as section.key=value
};

// `ranks` is the number of ranks to which the batch sizes apply; 0: unknown. IoError for invalid JSON. UsageError names
// the key if values contradict each other or have the wrong type.
DeepSpeedImport import_deepspeed(std::string_view json, std::string_view name, int64_t ranks);

// Writes a run file with the imported keys, and with everything else as comments. `base` is the text of a run file
// whose keys the imported ones override; it may be empty.
std::string to_run_file(const DeepSpeedImport& imported, std::string_view name, std::string_view base);

}  // namespace esp::train
