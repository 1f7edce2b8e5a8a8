// The request's messages as values of the template language, bent to what a template can read.
#pragma once

#include "base/status.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"

namespace cachalot {

// `caps` null: as they are.
Result<jinja::Value> MessagesValue(jinja::Runtime& rt, const ChatJson& messages,
                                   const ChatTemplateCaps* caps);

}  // namespace cachalot
