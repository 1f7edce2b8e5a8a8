list(APPEND KERNEL_SOURCES attention/attention.cc attention/attention_ref.cc)
