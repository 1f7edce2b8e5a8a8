// The metadata of the GGUF file that a Hugging Face folder becomes, in the layout of llama.cpp's mainline
// (multi-head latent attention split into k_b and v_b). What a GGUF file could not say is kUnsupported, so that no file
// runs as another model than the folder.
#pragma once

#include "base/status.h"
#include "formats/gguf_writer.h"
#include "formats/hf_config.h"
#include "model/model_spec.h"

namespace cachalot {

Status SetHfMetadata(const HfConfig& config, const ModelSpec& spec, const std::string& name, GgufWriter* writer);

}  // namespace cachalot
