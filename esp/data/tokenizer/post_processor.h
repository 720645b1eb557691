// The post_processor of a tokenizer.json: the ids that are added before and after a single text.
//
//   TemplateProcessing                  the special tokens around "A" in its "single" template
//   BertProcessing, RobertaProcessing   cls before, sep after
//   ByteLevel                           no ids: it changes offsets only
//   Sequence                            the ids of its one part that adds tokens (`tokenizers` runs no second one)
#pragma once

#include <string_view>

#include "esp/base/json.h"
#include "esp/data/tokenizer/tokenizer.h"

namespace esp::data {

// `rest` is the file without its vocabulary. An unknown kind is an IoError that names it.
TextTemplate read_post_processor(const Json& rest, std::string_view what);
// Composes the JSON of the tokenizer's template; null for an empty template.
Json compose_post_processor(const Tokenizer& tokenizer);

// Applies tokenizer_config.json: `add_bos_token` and `add_eos_token` if present. With `class_decides` (the tokenizer
// file has no post-processor) its `tokenizer_class` sets the template.
void apply_tokenizer_config(Tokenizer& tokenizer, const Json& config, bool class_decides);

}  // namespace esp::data
