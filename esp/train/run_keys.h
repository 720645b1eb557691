// Decides which keys of a run file a run reads, by the conditions in Field::read_by.
//
// A condition is "section.key = a, b" (the value is one of these) or "section.key != a" (the value is not this). " and
// " joins conditions that must all hold; " or " separates alternatives. A list value ("qwz,hpz") or a value with a
// parameter ("topk:0.01") matches if one of its words, without the part after the colon, matches. A condition holds
// only if the run also reads the key in the condition.
#pragma once

#include <string>
#include <vector>

#include "esp/train/run_config.h"

namespace esp::train {

// The value in the form that --set accepts: strings have no quotes.
std::string plain_text(const Field& field);

// The normal form of a configuration: defaults that depend on other keys are filled in, and aliases are replaced.
RunConfig normalised(RunConfig config);

// True if the run reads the key. `all` are the fields of a normalised configuration.
bool is_read(const std::vector<Field>& all, const Field& field);
// True if the key may have different values on the ranks of one run. These are paths, whose content is compared instead
// (data_identity.h), and settings that affect only one rank or host. All other keys must be equal.
bool may_differ_by_rank(const Field& field);

// Empty if the run reads the key; otherwise «sync.tau = 4: used only with sync.method = local; this run has …».
std::string unread_reason(const std::vector<Field>& all, const Field& field);

}  // namespace esp::train
