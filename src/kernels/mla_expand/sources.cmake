list(APPEND KERNEL_SOURCES mla_expand/mla_expand.cc)
