list(APPEND KERNEL_SOURCES embed/embed.cc)
list(APPEND KERNEL_TESTS embed/embed_test.cc)
