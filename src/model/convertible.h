// Whether what `halfbyte convert` makes of a checkpoint could be run: asked before the work, which
// takes hours for large models.
//
// The result holds what the source holds, in other formats. So the source must be whole: every
// tensor of the roster there, with its shape and a dtype that can be run, vectors finite, and
// nothing that would change results if it were read; and a layer of experts in NVFP4 must be one
// that can be planned. Unlike inspect_checkpoint it asks neither what the source's configs claim
// nor whether its own experts could be run. Checked: tests/unit/model/convertible_test.cpp.
#pragma once

#include "formats/checkpoint.h"
#include "model/config.h"

namespace halfbyte {

// `result` is the configuration that the result will have: it may keep fewer layers and experts.
// Throws Error: the first reason, with the number of all.
void check_convertible(const Checkpoint& source, const ModelConfig& result);

}  // namespace halfbyte
